// Dot products of the matrix kernels, sixteen lanes in plain loops: lets a machine without AVX-512 test the kernels'
// logic with the BF16 and VNNI instructions' meaning. For tests only. See dot.h.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int kFloatTileRows = 12;
constexpr int kBf16TileRows = 12;
constexpr int kGroupedTileRows = 6;
constexpr int kGroupedTileVectors = 2;
// Panels that a single row passes side by side.
constexpr int kFloatRowPanels = 2;
// How far a single block of rows looks ahead.
constexpr int64_t kLookaheadBytes = 1024;

struct VI {
  uint32_t lane[16];
};

static inline VI load_bytes(const std::byte* p) {
  VI result;
  memcpy(result.lane, p, sizeof(result.lane));
  return result;
}
static inline VI broadcast_int(int32_t x) {
  VI result;
  for (uint32_t& lane : result.lane) lane = static_cast<uint32_t>(x);
  return result;
}

static inline VF as_floats(VI bits) {
  float lanes[16];
  memcpy(lanes, bits.lane, sizeof(lanes));
  return load(lanes);
}
static inline VF even_bf16(VI pairs) {
  for (uint32_t& lane : pairs.lane) lane <<= 16;
  return as_floats(pairs);
}
static inline VF odd_bf16(VI pairs) {
  for (uint32_t& lane : pairs.lane) lane &= 0xffff0000u;
  return as_floats(pairs);
}

#define OCTAVO_BF16_DOT 1

// Zero, with the sign of a, where a is smaller than the normal numbers.
static inline VF flush(VF a) { return select_less(abs(a), broadcast(FLT_MIN), a * zero(), a); }

static inline VF flushing_fma(VF a, VF b, VF c) { return flush(fma(flush(a), flush(b), flush(c))); }

// After Intel's pseudo-code for vdpbf16ps: the upper product first.
static inline VF dot_bf16(VF sum, VI weights, VI x) {
  return flushing_fma(even_bf16(weights), even_bf16(x), flushing_fma(odd_bf16(weights), odd_bf16(x), sum));
}

// Sum of the products of unsigned bytes of the weights and signed bytes of x in each lane.
static inline VI dot_bytes(VI sum, VI weights, VI x) {
  for (int i = 0; i < 16; ++i) {
    for (int shift = 0; shift < 32; shift += 8) {
      const int weight = static_cast<int>(weights.lane[i] >> shift & 255);
      sum.lane[i] += static_cast<uint32_t>(weight * static_cast<int8_t>(x.lane[i] >> shift & 255));
    }
  }
  return sum;
}

static inline VF int_lanes(VI sum) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>(static_cast<int32_t>(sum.lane[i]));
  return load(lanes);
}

struct Int4Dot {
  using Activation = int8_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI nibbles) {
    for (uint32_t& lane : nibbles.lane) lane = lane >> (4 * kStep) & 0x0f0f0f0fu;
    return nibbles;
  }
  static VI start(int32_t) { return broadcast_int(0); }
  static VI add(VI sum, VI weights, VI x) { return dot_bytes(sum, weights, x); }
  static VF finish(VI sum) { return int_lanes(sum); }
};

struct Int8Dot {
  using Activation = int8_t;
  static constexpr int kSteps = 1;

  template <int kStep>
  static VI weights(VI bytes) {
    return bytes;
  }
  static VI start(int32_t offset) { return broadcast_int(offset); }
  static VI add(VI sum, VI weights, VI x) { return dot_bytes(sum, weights, x); }
  static VF finish(VI sum) { return int_lanes(sum); }
};

}  // namespace octavo::OCTAVO_ISA
