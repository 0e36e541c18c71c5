// Sixteen float lanes as two AVX2 registers: lets a machine without AVX-512 test the kernels' logic at sixteen lanes.
//
// For tests only; results need not equal those of any other instruction set bit for bit.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA {

struct VF {
  static constexpr int kLanes = 16;
  __m256 low, high;
};

static inline VF zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline VF broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline VF load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, VF a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}

static inline VF load_partial(const float* p, int n) {
  if (n >= VF::kLanes) return load(p);
  alignas(64) float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
static inline void store_partial(float* p, VF a, int n) {
  if (n >= VF::kLanes) return store(p, a);
  alignas(64) float lanes[16];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

static inline VF operator+(VF a, VF b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
static inline VF operator-(VF a, VF b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
static inline VF operator*(VF a, VF b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
static inline VF operator/(VF a, VF b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
static inline VF fma(VF a, VF b, VF c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
static inline VF min(VF a, VF b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
static inline VF max(VF a, VF b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
static inline VF abs(VF a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
static inline VF select_less(VF a, VF b, VF x, VF y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

static inline uint32_t mask_less(VF a, VF b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))) << 8;
}
static inline uint32_t mask_less_equal(VF a, VF b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ))) << 8;
}

static inline void store_set(float* p, VF a, uint32_t mask) {
  float lanes[16];
  store(lanes, a);
  for (; mask != 0; mask &= mask - 1) *p++ = lanes[__builtin_ctz(mask)];
}
static inline void store_set_numbers(int32_t* p, int32_t first, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) *p++ = first + __builtin_ctz(mask);
}

static inline float reduce_add(VF a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
static inline float reduce_max(VF a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

struct DoubleSum {
  double lanes[16] = {};
  void add(VF a) {
    alignas(64) float values[16];
    store(values, a);
    for (int i = 0; i < 16; ++i) lanes[i] += values[i];
  }
  double total() const {
    double sum = 0;
    for (double lane : lanes) sum += lane;
    return sum;
  }
};

static inline VF round_to_int(VF a) {
  return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline __m256 scale_half(__m256 a, __m256 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
static inline VF scale_by_power(VF a, VF n) { return {scale_half(a.low, n.low), scale_half(a.high, n.high)}; }

static inline __m256 half_from_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline VF load_bf16(const uint16_t* p) { return {half_from_bf16(p), half_from_bf16(p + 8)}; }
static inline void store_bf16(uint16_t* p, VF a) {
  alignas(64) uint32_t bits[16];
  _mm256_store_ps(reinterpret_cast<float*>(bits), a.low);
  _mm256_store_ps(reinterpret_cast<float*>(bits + 8), a.high);
  for (int i = 0; i < 16; ++i) {
    const bool is_nan = (bits[i] & 0x7fffffffu) > 0x7f800000u;
    p[i] = static_cast<uint16_t>((is_nan ? bits[i] | 0x400000u : bits[i] + 0x7fffu + (bits[i] >> 16 & 1u)) >> 16);
  }
}
static inline VF load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
static inline void store_fp16(uint16_t* p, VF a) {
  constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.low, kRounding));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.high, kRounding));
}
static inline __m256 half_of_pairs(const uint16_t* p, int shift) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(pairs, shift), 16));
}
static inline VF load_bf16_first(const uint16_t* p) { return {half_of_pairs(p, 0), half_of_pairs(p + 16, 0)}; }
static inline VF load_bf16_second(const uint16_t* p) { return {half_of_pairs(p, 16), half_of_pairs(p + 16, 16)}; }
static inline __m256 half_from_int8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
static inline VF load_int8(const int8_t* p) { return {half_from_int8(p), half_from_int8(p + 8)}; }

}  // namespace octavo::OCTAVO_ISA
