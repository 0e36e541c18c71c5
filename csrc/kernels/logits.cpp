// What is done to logits before a token is drawn: soft_cap, adjust_logits, mask_logits.
//
// Twins of the same names in reference.py.
#include <cmath>

#include "kernels/kernels.h"
#include "simd/simd_math.h"

namespace octavo::OCTAVO_ISA {

void soft_cap(const SoftCapArgs& args, int64_t num_rows, Worker& worker) {
  const VF cap = broadcast(args.cap);
  const Range rows = share_of(num_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float* x = args.x + row * args.x_stride;
    for (int64_t i = 0; i < args.size; i += VF::kLanes) {
      const int n = lanes_left(args.size - i);
      store_partial(x + i, cap * tanh(load_partial(x + i, n) / cap), n);
    }
  }
}

void adjust_logits(const AdjustLogitsArgs& args, int64_t num_entries, Worker& worker) {
  const Range entries = share_of(num_entries, worker);
  for (int64_t i = entries.begin; i < entries.end; ++i) {
    float& logit = args.logits[args.rows[i] * args.logits_stride + args.token_ids[i]];
    logit = (logit > 0 ? logit / args.repetition[i] : logit * args.repetition[i]) + args.additive[i];
  }
}

void mask_logits(const MaskLogitsArgs& args, int64_t num_entries, Worker& worker) {
  const Range entries = share_of(num_entries, worker);
  for (int64_t i = entries.begin; i < entries.end; ++i) {
    float* logits = args.logits + args.rows[i] * args.logits_stride;
    const uint32_t* bitmask = args.bitmasks + i * args.bitmask_stride;
    for (int64_t token = 0; token < args.vocab_size; ++token) {
      if ((bitmask[token / 32] >> (token % 32) & 1u) == 0) logits[token] = -INFINITY;
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
