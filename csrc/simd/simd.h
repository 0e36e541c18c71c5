// Float vectors of the instruction set that is being compiled; each header below defines the same names.
//
// - VF: kLanes floats; operators + - * /. zero(), broadcast(x).
// - load(p), load_partial(p, n), store(p, v), store_partial(p, v, n): lanes beyond n are read as 0.
// - fma(a, b, c): a * b + c, rounded once. min(a, b), max(a, b): b where either is NaN.
// - reduce_add(v), reduce_max(v): halves folded in one fixed order.
// - load_bf16(p), load_fp16(p): kLanes 16-bit values as floats; store_bf16, store_fp16 round to nearest even.
// - load_bf16_first(p), load_bf16_second(p): the first, or second, of kLanes pairs of bf16. load_int8(p).
// - select_less(a, b, x, y): a < b ? x : y per lane.
// - mask_less(a, b), mask_less_equal(a, b): bit i tells whether it holds in lane i; false where either is NaN.
// - DoubleSum: add(v) sums lanes in double precision; total() folds them in one fixed order.
// - round_to_int(v): nearest integer, as floats. scale_by_power(v, n): v * 2^n for integral n in [-126, 127].
#pragma once

#include <cstdint>

#if defined(OCTAVO_EMULATED)
#include "simd/simd_emulated512.h"
#elif defined(__AVX512F__)
#include "simd/simd_avx512.h"
#elif defined(__AVX2__)
#include "simd/simd_avx2.h"
#elif defined(__aarch64__)
#include "simd/simd_neon.h"
#else
#error "no vector header for this instruction set"
#endif

namespace octavo::OCTAVO_ISA {

// How many lanes of a vector that starts `left` elements before the end of an array lie inside it.
static inline int lanes_left(int64_t left) { return left < VF::kLanes ? static_cast<int>(left) : VF::kLanes; }

}  // namespace octavo::OCTAVO_ISA
