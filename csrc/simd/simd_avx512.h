// Sixteen float lanes: AVX-512 F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA {

struct VF {
  static constexpr int kLanes = 16;
  __m512 v;
};

static inline VF zero() { return {_mm512_setzero_ps()}; }
static inline VF broadcast(float x) { return {_mm512_set1_ps(x)}; }
static inline VF load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, VF a) { _mm512_storeu_ps(p, a.v); }

static inline __mmask16 first_lanes(int n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1);
}
static inline VF load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
static inline void store_partial(float* p, VF a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

static inline VF operator+(VF a, VF b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline VF operator-(VF a, VF b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline VF operator*(VF a, VF b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline VF operator/(VF a, VF b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline VF fma(VF a, VF b, VF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline VF min(VF a, VF b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline VF max(VF a, VF b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline VF abs(VF a) { return {_mm512_abs_ps(a.v)}; }
static inline VF select_less(VF a, VF b, VF x, VF y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}

static inline uint32_t mask_less(VF a, VF b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
static inline uint32_t mask_less_equal(VF a, VF b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ); }

static inline void store_set(float* p, VF a, uint32_t mask) {
  store(p, {_mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v)});
}
static inline void store_set_numbers(int32_t* p, int32_t first, uint32_t mask) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i numbers = _mm512_add_epi32(_mm512_set1_epi32(first), lanes);
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), numbers));
}

static inline float reduce_add(VF a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
static inline float reduce_max(VF a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

struct DoubleSum {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  void add(VF a) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(a.v)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1)));
  }
  double total() const {
    const __m512d both = _mm512_add_pd(low, high);
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(both), _mm512_extractf64x4_pd(both, 1));
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(half) + _mm_cvtsd_f64(_mm_unpackhi_pd(half, half));
  }
};

static inline VF round_to_int(VF a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline VF scale_by_power(VF a, VF n) {
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)))};
}

static inline VF load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
static inline void store_bf16(uint16_t* p, VF a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i kept = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
static inline VF load_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store_fp16(uint16_t* p, VF a) {
  const __m256i half = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}
static inline VF load_bf16_first(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
static inline VF load_bf16_second(const uint16_t* p) {
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high_half))};
}
static inline VF load_int8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

}  // namespace octavo::OCTAVO_ISA
