// Eight float lanes: AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA {

struct VF {
  static constexpr int kLanes = 8;
  __m256 v;
};

static inline VF zero() { return {_mm256_setzero_ps()}; }
static inline VF broadcast(float x) { return {_mm256_set1_ps(x)}; }
static inline VF load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store(float* p, VF a) { _mm256_storeu_ps(p, a.v); }

static inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The branch is worth its while: a masked store takes more than ten cycles on some processors.
static inline VF load_partial(const float* p, int n) {
  return n >= VF::kLanes ? load(p) : VF{_mm256_maskload_ps(p, first_lanes(n))};
}
static inline void store_partial(float* p, VF a, int n) {
  if (n >= VF::kLanes) {
    store(p, a);
  } else {
    _mm256_maskstore_ps(p, first_lanes(n), a.v);
  }
}

static inline VF operator+(VF a, VF b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline VF operator-(VF a, VF b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline VF operator*(VF a, VF b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline VF operator/(VF a, VF b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline VF fma(VF a, VF b, VF c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline VF min(VF a, VF b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline VF max(VF a, VF b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline VF abs(VF a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
static inline VF select_less(VF a, VF b, VF x, VF y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}

static inline uint32_t mask_less(VF a, VF b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)); }
static inline uint32_t mask_less_equal(VF a, VF b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)); }

// The numbers of the lanes whose bits are set in a mask, side by side; what follows them has no meaning.
struct SetLanes {
  uint8_t of_mask[256][8];
  constexpr SetLanes() : of_mask() {
    for (int mask = 0; mask < 256; ++mask) {
      for (int lane = 0, count = 0; lane < 8; ++lane) {
        if (mask >> lane & 1) of_mask[mask][count++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
static constexpr SetLanes kSetLanes;
static inline __m256i set_lanes(uint32_t mask) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kSetLanes.of_mask[mask])));
}
static inline void store_set(float* p, VF a, uint32_t mask) {
  _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(a.v, set_lanes(mask)));
}
static inline void store_set_numbers(int32_t* p, int32_t first, uint32_t mask) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_add_epi32(_mm256_set1_epi32(first), set_lanes(mask)));
}

static inline float reduce_add(VF a) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
static inline float reduce_max(VF a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

struct DoubleSum {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  void add(VF a) {
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(a.v)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(a.v, 1)));
  }
  double total() const {
    const __m256d both = _mm256_add_pd(low, high);
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(both), _mm256_extractf128_pd(both, 1));
    return _mm_cvtsd_f64(half) + _mm_cvtsd_f64(_mm_unpackhi_pd(half, half));
  }
};

static inline VF round_to_int(VF a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline VF scale_by_power(VF a, VF n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}

static inline VF load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
static inline void store_bf16(uint16_t* p, VF a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
static inline VF load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline void store_fp16(uint16_t* p, VF a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline VF load_bf16_first(const uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16))};
}
static inline VF load_bf16_second(const uint16_t* p) {
  const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), high_half))};
}
static inline VF load_int8(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}

}  // namespace octavo::OCTAVO_ISA
