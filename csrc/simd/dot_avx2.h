// Dot products of the matrix kernels for AVX2, see dot.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {

// Sixteen registers: twelve sums of the widest float tile; with bf16 weights expanded on the way, eight.
constexpr int kFloatTileRows = 3;
constexpr int kBf16TileRows = 2;
constexpr int kGroupedTileRows = 4;
constexpr int kGroupedTileVectors = 2;
// Panels that a single row passes side by side: with two runs of addresses memory delivers more than with one.
constexpr int kFloatRowPanels = 2;
// How far a single block of rows looks ahead: enough lines on the way to hide the latency of memory.
constexpr int64_t kLookaheadBytes = 1024;

struct VI {
  __m256i v;
};

static inline VI load_bytes(const std::byte* p) { return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p))}; }
static inline VI broadcast_int(int32_t x) { return {_mm256_set1_epi32(x)}; }

static inline VF even_bf16(VI pairs) { return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs.v, 16))}; }
static inline VF odd_bf16(VI pairs) {
  return {_mm256_castsi256_ps(_mm256_and_si256(pairs.v, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
}

struct Int4Dot {
  using Activation = int8_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI nibbles) {
    return {_mm256_and_si256(kStep == 0 ? nibbles.v : _mm256_srli_epi16(nibbles.v, 4), _mm256_set1_epi8(15))};
  }
  static VI start(int32_t) { return {_mm256_setzero_si256()}; }
  // Pairs of products are at most 2 * 15 * 127; the eight of a group fit in sixteen bits.
  static VI add(VI sum, VI weights, VI x) {
    sum.v = _mm256_add_epi16(sum.v, _mm256_maddubs_epi16(weights.v, x.v));
    asm("" : "+x"(sum.v));  // keeps the compiler from turning the chain into a tree, which spills
    return sum;
  }
  static VF finish(VI sum) { return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sum.v, _mm256_set1_epi16(1)))}; }
};

// Sixteen-bit activations: the instruction for eight by eight bits saturates, and more bits cost nothing here.
struct Int8Dot {
  using Activation = int16_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI bytes) {
    return {kStep == 0 ? _mm256_and_si256(bytes.v, _mm256_set1_epi16(255)) : _mm256_srli_epi16(bytes.v, 8)};
  }
  static VI start(int32_t offset) { return broadcast_int(offset); }
  static VI add(VI sum, VI weights, VI x) {
    sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(weights.v, x.v));
    asm("" : "+x"(sum.v));  // as above
    return sum;
  }
  static VF finish(VI sum) { return {_mm256_cvtepi32_ps(sum.v)}; }
};

}  // namespace octavo::OCTAVO_ISA
