// Declares the kernels of the instruction set that is being compiled.
//
// Sources in this folder are compiled once per instruction set. So that no two objects define one symbol with different
// instructions, they keep everything in namespace octavo::OCTAVO_ISA and call nothing that the compiler might emit as a
// shared inline function (no containers; std algorithms over types of their own only).
#pragma once

#include "kernels/kernel_table.h"

namespace octavo::OCTAVO_ISA {

Kernel<EmbedArgs> embed;
Kernel<RmsNormArgs> rms_norm;
Kernel<LinearArgs> linear;
Kernel<RotaryArgs> rotary;
Kernel<RopeAndStoreArgs> rope_and_store;
Kernel<PagedAttentionArgs> paged_attention;
Kernel<GatedActivationArgs> gated_activation;
Kernel<SoftCapArgs> soft_cap;
Kernel<CopyBlocksArgs> copy_blocks;
Kernel<AdjustLogitsArgs> adjust_logits;
Kernel<MaskLogitsArgs> mask_logits;
Kernel<SampleArgs> sample;
Kernel<LogprobsArgs> logprobs;
Kernel<ChosenRanksArgs> chosen_ranks;

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A half-open range of items.
struct Range {
  int64_t begin;
  int64_t end;
};

// Returns this worker's share of num_items, cut at multiples of `grain`.
static inline Range share_of(int64_t num_items, const Worker& worker, int64_t grain = 1) {
  const int64_t num_grains = (num_items + grain - 1) / grain;
  const int64_t begin = num_grains * worker.index / worker.count * grain;
  const int64_t end = num_grains * (worker.index + 1) / worker.count * grain;
  return {begin, end < num_items ? end : num_items};
}

}  // namespace octavo::OCTAVO_ISA
