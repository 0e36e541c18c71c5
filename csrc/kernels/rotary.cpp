// rotary: cosines and sines of positions[t] * inverse_frequencies[i], in double precision. Twin: rotary in
// reference.py.
#include <cmath>

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

void rotary(const RotaryArgs& args, int64_t num_rows, Worker& worker) {
  const Range rows = share_of(num_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float* cosines = args.out + row * 2 * args.half_dim;
    float* sines = cosines + args.half_dim;
    for (int64_t i = 0; i < args.half_dim; ++i) {
      const double angle = args.positions[row] * args.inverse_frequencies[i];
      cosines[i] = static_cast<float>(args.scale * std::cos(angle));
      sines[i] = static_cast<float>(args.scale * std::sin(angle));
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
