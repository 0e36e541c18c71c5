// Dot products of the matrix kernels for AVX-512, with BF16 and VNNI where the compiler may use them; see dot.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {

// Thirty-two registers: twenty-four sums of the float tile; the integer tile needs a few for weights and scales.
constexpr int kFloatTileRows = 12;
constexpr int kBf16TileRows = 12;
constexpr int kGroupedTileRows = 6;
constexpr int kGroupedTileVectors = 2;
// Panels that a single row passes side by side.
constexpr int kFloatRowPanels = 1;
// A single block of rows does not look ahead: on Zen 4 the processor's own prefetching is better left alone.
constexpr int64_t kLookaheadBytes = 0;

struct VI {
  __m512i v;
};

static inline VI load_bytes(const std::byte* p) { return {_mm512_load_si512(p)}; }
static inline VI broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }

static inline VF even_bf16(VI pairs) { return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs.v, 16))}; }
static inline VF odd_bf16(VI pairs) {
  return {_mm512_castsi512_ps(_mm512_and_si512(pairs.v, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}

static inline VI low_nibbles(VI bytes) { return {_mm512_and_si512(bytes.v, _mm512_set1_epi8(15))}; }
static inline VI high_nibbles(VI bytes) {
  return {_mm512_and_si512(_mm512_srli_epi16(bytes.v, 4), _mm512_set1_epi8(15))};
}

#if defined(__AVX512BF16__)

#define OCTAVO_BF16_DOT 1

static inline VF dot_bf16(VF sum, VI weights, VI x) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(weights.v), reinterpret_cast<__m512bh>(x.v))};
}

#endif

#if defined(__AVX512VNNI__)

struct Int4Dot {
  using Activation = int8_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI nibbles) {
    return kStep == 0 ? low_nibbles(nibbles) : high_nibbles(nibbles);
  }
  static VI start(int32_t) { return {_mm512_setzero_si512()}; }
  static VI add(VI sum, VI weights, VI x) { return {_mm512_dpbusd_epi32(sum.v, weights.v, x.v)}; }
  static VF finish(VI sum) { return {_mm512_cvtepi32_ps(sum.v)}; }
};

struct Int8Dot {
  using Activation = int8_t;
  static constexpr int kSteps = 1;

  template <int kStep>
  static VI weights(VI bytes) {
    return bytes;
  }
  static VI start(int32_t offset) { return broadcast_int(offset); }
  static VI add(VI sum, VI weights, VI x) { return {_mm512_dpbusd_epi32(sum.v, weights.v, x.v)}; }
  static VF finish(VI sum) { return {_mm512_cvtepi32_ps(sum.v)}; }
};

#else

struct Int4Dot {
  using Activation = int8_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI nibbles) {
    return kStep == 0 ? low_nibbles(nibbles) : high_nibbles(nibbles);
  }
  static VI start(int32_t) { return {_mm512_setzero_si512()}; }
  // Pairs of products are at most 2 * 15 * 127; the eight of a group fit in sixteen bits.
  static VI add(VI sum, VI weights, VI x) {
    sum.v = _mm512_add_epi16(sum.v, _mm512_maddubs_epi16(weights.v, x.v));
    asm("" : "+v"(sum.v));  // keeps the compiler from turning the chain into a tree, which spills
    return sum;
  }
  static VF finish(VI sum) { return {_mm512_cvtepi32_ps(_mm512_madd_epi16(sum.v, _mm512_set1_epi16(1)))}; }
};

// Sixteen-bit activations: the instruction for eight by eight bits saturates, and more bits cost nothing here.
struct Int8Dot {
  using Activation = int16_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI bytes) {
    return {kStep == 0 ? _mm512_and_si512(bytes.v, _mm512_set1_epi16(255)) : _mm512_srli_epi16(bytes.v, 8)};
  }
  static VI start(int32_t offset) { return broadcast_int(offset); }
  static VI add(VI sum, VI weights, VI x) {
    sum.v = _mm512_add_epi32(sum.v, _mm512_madd_epi16(weights.v, x.v));
    asm("" : "+v"(sum.v));  // as above
    return sum;
  }
  static VF finish(VI sum) { return {_mm512_cvtepi32_ps(sum.v)}; }
};

#endif

}  // namespace octavo::OCTAVO_ISA
