// Four float lanes: Arm NEON (aarch64).
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA {

struct VF {
  static constexpr int kLanes = 4;
  float32x4_t v;
};

static inline VF zero() { return {vdupq_n_f32(0.0f)}; }
static inline VF broadcast(float x) { return {vdupq_n_f32(x)}; }
static inline VF load(const float* p) { return {vld1q_f32(p)}; }
static inline void store(float* p, VF a) { vst1q_f32(p, a.v); }

static inline VF load_partial(const float* p, int n) {
  if (n >= VF::kLanes) return load(p);
  float lanes[4] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
static inline void store_partial(float* p, VF a, int n) {
  if (n >= VF::kLanes) return store(p, a);
  float lanes[4];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

static inline VF operator+(VF a, VF b) { return {vaddq_f32(a.v, b.v)}; }
static inline VF operator-(VF a, VF b) { return {vsubq_f32(a.v, b.v)}; }
static inline VF operator*(VF a, VF b) { return {vmulq_f32(a.v, b.v)}; }
static inline VF operator/(VF a, VF b) { return {vdivq_f32(a.v, b.v)}; }
static inline VF fma(VF a, VF b, VF c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
static inline VF min(VF a, VF b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
static inline VF max(VF a, VF b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
static inline VF abs(VF a) { return {vabsq_f32(a.v)}; }
static inline VF select_less(VF a, VF b, VF x, VF y) { return {vbslq_f32(vcltq_f32(a.v, b.v), x.v, y.v)}; }

static inline uint32_t lane_bits(uint32x4_t mask) {
  static const uint32_t kBits[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(mask, vld1q_u32(kBits)));
}
static inline uint32_t mask_less(VF a, VF b) { return lane_bits(vcltq_f32(a.v, b.v)); }
static inline uint32_t mask_less_equal(VF a, VF b) { return lane_bits(vcleq_f32(a.v, b.v)); }

static inline void store_set(float* p, VF a, uint32_t mask) {
  float lanes[4];
  store(lanes, a);
  for (; mask != 0; mask &= mask - 1) *p++ = lanes[__builtin_ctz(mask)];
}
static inline void store_set_numbers(int32_t* p, int32_t first, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) *p++ = first + __builtin_ctz(mask);
}

static inline float reduce_add(VF a) {
  const float32x2_t half = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}
static inline float reduce_max(VF a) { return vmaxvq_f32(a.v); }

struct DoubleSum {
  float64x2_t low = vdupq_n_f64(0.0), high = vdupq_n_f64(0.0);
  void add(VF a) {
    low = vaddq_f64(low, vcvt_f64_f32(vget_low_f32(a.v)));
    high = vaddq_f64(high, vcvt_high_f64_f32(a.v));
  }
  double total() const { return vaddvq_f64(vaddq_f64(low, high)); }
};

static inline VF round_to_int(VF a) { return {vrndnq_f32(a.v)}; }
static inline VF scale_by_power(VF a, VF n) {
  const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n.v), vdupq_n_s32(127));
  return {vmulq_f32(a.v, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)))};
}

static inline VF load_bf16(const uint16_t* p) {
  return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16))};
}
static inline void store_bf16(uint16_t* p, VF a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  const uint32x4_t kept = vbslq_u32(vceqq_f32(a.v, a.v), rounded, quiet);
  vst1_u16(p, vmovn_u32(vshrq_n_u32(kept, 16)));
}
static inline VF load_fp16(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
static inline void store_fp16(uint16_t* p, VF a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
static inline VF load_bf16_first(const uint16_t* p) {
  return {vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(p)), 16))};
}
static inline VF load_bf16_second(const uint16_t* p) {
  return {vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(p)), vdupq_n_u32(0xffff0000u)))};
}
static inline VF load_int8(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))};
}

}  // namespace octavo::OCTAVO_ISA
