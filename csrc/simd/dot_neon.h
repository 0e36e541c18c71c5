// Dot products of the matrix kernels for Arm NEON, with the int8 matrix extension where the compiler may use it; see
// dot.h.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {

// Thirty-two registers of four lanes: twenty-four sums of a float tile.
constexpr int kFloatTileRows = 3;
constexpr int kBf16TileRows = 2;
constexpr int kGroupedTileRows = 4;
constexpr int kGroupedTileVectors = 4;
// Panels that a single row passes side by side.
constexpr int kFloatRowPanels = 1;
// How far a single block of rows looks ahead.
constexpr int64_t kLookaheadBytes = 1024;

struct VI {
  uint8x16_t v;
};

static inline VI load_bytes(const std::byte* p) { return {vld1q_u8(reinterpret_cast<const uint8_t*>(p))}; }
static inline VI broadcast_int(int32_t x) { return {vreinterpretq_u8_s32(vdupq_n_s32(x))}; }

static inline VF even_bf16(VI pairs) { return {vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u8(pairs.v), 16))}; }
static inline VF odd_bf16(VI pairs) {
  return {vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(pairs.v), vdupq_n_u32(0xffff0000u)))};
}

static inline VF int_lanes(VI sum) { return {vcvtq_f32_s32(vreinterpretq_s32_u8(sum.v))}; }

struct NibbleWeights {
  using Activation = int8_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI nibbles) {
    return {kStep == 0 ? vandq_u8(nibbles.v, vdupq_n_u8(15)) : vshrq_n_u8(nibbles.v, 4)};
  }
  static VI start(int32_t) { return broadcast_int(0); }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)

static inline VI dot_bytes(VI sum, VI weights, VI x) {
  return {vreinterpretq_u8_s32(vusdotq_s32(vreinterpretq_s32_u8(sum.v), weights.v, vreinterpretq_s8_u8(x.v)))};
}

struct Int4Dot : NibbleWeights {
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

#else

struct Int4Dot : NibbleWeights {
  // Sixteen-bit sums of pairs, as on AVX2.
  static VI add(VI sum, VI weights, VI x) {
    const int8x16_t w = vreinterpretq_s8_u8(weights.v), signed_x = vreinterpretq_s8_u8(x.v);
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(signed_x));
    const int16x8_t pairs = vpaddq_s16(low, vmull_high_s8(w, signed_x));
    return {vreinterpretq_u8_s16(vaddq_s16(vreinterpretq_s16_u8(sum.v), pairs))};
  }
  static VF finish(VI sum) { return {vcvtq_f32_s32(vpaddlq_s16(vreinterpretq_s16_u8(sum.v)))}; }
};

struct Int8Dot {
  using Activation = int16_t;
  static constexpr int kSteps = 2;

  template <int kStep>
  static VI weights(VI bytes) {
    const uint16x8_t wide = vreinterpretq_u16_u8(bytes.v);
    return {vreinterpretq_u8_u16(kStep == 0 ? vandq_u16(wide, vdupq_n_u16(255)) : vshrq_n_u16(wide, 8))};
  }
  static VI start(int32_t offset) { return broadcast_int(offset); }
  static VI add(VI sum, VI weights, VI x) {
    const int16x8_t w = vreinterpretq_s16_u8(weights.v), wide_x = vreinterpretq_s16_u8(x.v);
    const int32x4_t low = vmull_s16(vget_low_s16(w), vget_low_s16(wide_x));
    const int32x4_t pairs = vpaddq_s32(low, vmull_high_s16(w, wide_x));
    return {vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(sum.v), pairs))};
  }
  static VF finish(VI sum) { return int_lanes(sum); }
};

#endif

}  // namespace octavo::OCTAVO_ISA
