// gated_activation: out = act(gate) * up.
//
// Workers take pieces of rows: one row of a small step must not keep the others waiting. Twin: gated_activation in
// reference.py.
#include "kernels/kernels.h"
#include "simd/simd_math.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kLanes = VF::kLanes;
constexpr int64_t kPiece = 256;  // columns; large against the cost of finding one's share, a multiple of every kLanes

// The tanh form of GELU is x * logistic(2 u), because (1 + tanh u) / 2 = logistic(2 u).
VF gelu_tanh(VF x) {
  const VF cubic = fma(x * x * broadcast(0.044715f), x, x);
  return x * logistic(broadcast(1.5957691216f) * cubic);  // 2 sqrt(2 / pi)
}

template <Activation activation>
void activate(const float* gate, const float* up, float* out, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int n = lanes_left(size - i);
    const VF x = load_partial(gate + i, n);
    const VF y = activation == Activation::kSilu ? x * logistic(x) : gelu_tanh(x);
    store_partial(out + i, y * load_partial(up + i, n), n);
  }
}

}  // namespace

void gated_activation(const GatedActivationArgs& args, int64_t num_rows, Worker& worker) {
  const int64_t pieces_per_row = (args.size + kPiece - 1) / kPiece;
  const Range pieces = share_of(num_rows * pieces_per_row, worker);
  const auto apply =
      args.activation == Activation::kSilu ? activate<Activation::kSilu> : activate<Activation::kGeluTanh>;
  for (int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
    const int64_t row = piece / pieces_per_row, column = piece % pieces_per_row * kPiece;
    const float* gate = args.gate_up + row * args.gate_up_stride + column;
    const int64_t size = args.size - column < kPiece ? args.size - column : kPiece;
    apply(gate, gate + args.size, args.out + row * args.out_stride + column, size);
  }
}

}  // namespace octavo::OCTAVO_ISA
