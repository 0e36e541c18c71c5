// linear: out = x W^T + bias, or out += x W^T + bias. Workers take ranges of output features.
#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

void linear(const LinearArgs& args, int64_t num_rows, Worker& worker) {
  const int64_t num_inputs = args.weight->num_inputs;
  const Range outputs = share_of(args.weight->num_outputs, worker);
  float* weights = reinterpret_cast<float*>(worker.scratch(num_inputs * sizeof(float)));
  for (int64_t output = outputs.begin; output < outputs.end; ++output) {
    unpack_row(*args.weight, output, weights);
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* x = args.x + row * args.x_stride;
      float sum = 0;
      for (int64_t i = 0; i < num_inputs; ++i) sum += x[i] * weights[i];
      if (args.bias != nullptr) sum += args.bias[output];
      float& out = args.out[row * args.out_stride + output];
      out = args.accumulate ? out + sum : sum;
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
