// exp, tanh and the logistic function on vectors. Lanes do not influence one another, so a tail gives the same bits as
// a body.
//
// Errors measured over all float32 arguments: see tests/kernels/test_gated_activation.py for the bounds that hold.
#pragma once

#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {

// e^x to within 2 units in the last place; 0 from -104 down (also for -inf), inf from 88.73 up, NaN for NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial for e^r is that of Cephes' expf.
static inline VF exp(VF x) {
  const VF clamped = min(broadcast(89.0f), max(broadcast(-104.0f), x));  // in this order NaN passes through
  const VF n = round_to_int(clamped * broadcast(1.44269504f));
  const VF r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), clamped));
  VF p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  const VF half = round_to_int(n * broadcast(0.5f));  // 2^n itself may lie outside the normal numbers
  return scale_by_power(scale_by_power(p, half), n - half);
}

// tanh(x) to within 2 units in the last place. The polynomial for small x is that of Cephes' tanhf.
static inline VF tanh(VF x) {
  const VF size = abs(x), square = x * x;
  VF p = broadcast(-5.70498872745e-3f);
  p = fma(p, square, broadcast(2.06390887954e-2f));
  p = fma(p, square, broadcast(-5.37397155531e-2f));
  p = fma(p, square, broadcast(1.33314422036e-1f));
  p = fma(p, square, broadcast(-3.33332819422e-1f));
  const VF small = fma(p * square, x, x);
  const VF large = broadcast(1.0f) - broadcast(2.0f) / (exp(size + size) + broadcast(1.0f));
  return select_less(size, broadcast(0.625f), small, select_less(x, zero(), zero() - large, large));
}

// 1 / (1 + e^-x).
static inline VF logistic(VF x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(zero() - x)); }

}  // namespace octavo::OCTAVO_ISA
