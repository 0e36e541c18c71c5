// rms_norm: y = x * rsqrt(mean(x^2) + eps) * weight, row by row; out = y or out += y.
//
// Workers take whole rows. Twin: rms_norm in reference.py.
#include <cmath>

#include "kernels/kernels.h"
#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kLanes = VF::kLanes;

// Four chains hide the latency of the addition; their number is part of the order of reduction.
float sum_of_squares(const float* x, int64_t size) {
  VF sum[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) {
      const VF value = load(x + i + chain * kLanes);
      sum[chain] = fma(value, value, sum[chain]);
    }
  }
  for (int chain = 0; i < size; i += kLanes, ++chain) {
    const VF value = load_partial(x + i, lanes_left(size - i));
    sum[chain] = fma(value, value, sum[chain]);
  }
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

void normalise_row(const float* x, float* out, const RmsNormArgs& args) {
  const float mean = sum_of_squares(x, args.size) / static_cast<float>(args.size);
  const VF factor = broadcast(1.0f / std::sqrt(mean + args.eps));
  for (int64_t i = 0; i < args.size; i += kLanes) {
    const int n = lanes_left(args.size - i);
    VF y = load_partial(x + i, n) * factor * load_partial(args.weight + i, n);
    if (args.accumulate) y = load_partial(out + i, n) + y;
    store_partial(out + i, y, n);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, int64_t num_rows, Worker& worker) {
  const Range rows = share_of(num_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t source = args.rows == nullptr ? row : args.rows[row];
    normalise_row(args.x + source * args.x_stride, args.out + row * args.out_stride, args);
  }
}

}  // namespace octavo::OCTAVO_ISA
