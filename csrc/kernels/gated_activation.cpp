// gated_activation: out = act(gate) * up. Workers take whole rows. Twin: gated_activation in reference.py.
#include <cmath>

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {
namespace {

float activate(float x, Activation activation) {
  if (activation == Activation::kSilu) return x / (1.0f + std::exp(-x));
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + std::tanh(inner));
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, int64_t num_rows, Worker& worker) {
  const Range rows = share_of(num_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* gate = args.gate_up + row * args.gate_up_stride;
    float* out = args.out + row * args.out_stride;
    for (int64_t i = 0; i < args.size; ++i) out[i] = activate(gate[i], args.activation) * gate[args.size + i];
  }
}

}  // namespace octavo::OCTAVO_ISA
