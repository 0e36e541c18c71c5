// exp2 and tanh on float vectors: the same instructions for every lane.
#pragma once

#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {

// 2^x within 2 ulp for x in [-126, 127]; 0 below -126, 2^127 above 127.
static inline VF exp2(VF x) {
  const VF lowest = broadcast(-126.0f);
  const VF clamped = min(broadcast(127.0f), max(lowest, x));  // this order of operands lets NaN through
  const VF n = round_to_int(clamped);
  const VF r = clamped - n;
  // Cephes exp2f: minimax on [-0.5, 0.5].
  VF y = broadcast(1.535336188319500e-4f);
  y = fma(y, r, broadcast(1.339887440266574e-3f));
  y = fma(y, r, broadcast(9.618437357674640e-3f));
  y = fma(y, r, broadcast(5.550332471162809e-2f));
  y = fma(y, r, broadcast(2.402264791363012e-1f));
  y = fma(y, r, broadcast(6.931472028550421e-1f));
  y = scale_by_power(fma(y, r, broadcast(1.0f)), n);
  return select_less(x, lowest, zero(), y);
}

// tanh within 3 ulp.
static inline VF tanh(VF x) {
  const VF size = abs(x);
  const VF square = x * x;
  // Cephes tanhf below 0.625; the exponential form loses bits there.
  VF near = broadcast(-5.70498872745e-3f);
  near = fma(near, square, broadcast(2.06390887954e-2f));
  near = fma(near, square, broadcast(-5.37397155531e-2f));
  near = fma(near, square, broadcast(1.33314422036e-1f));
  near = fma(near, square, broadcast(-3.33332819422e-1f));
  near = fma(near * square, x, x);
  const VF one = broadcast(1.0f);
  const VF power = exp2(size * broadcast(2.885390081777927f));  // e^(2 |x|)
  const VF far = one - broadcast(2.0f) / (power + one);
  return select_less(size, broadcast(0.625f), near, select_less(x, zero(), zero() - far, far));
}

}  // namespace octavo::OCTAVO_ISA
