// The kernels of one instruction set, as a table of functions.
#pragma once

#include <cstdint>

#include "kernels/kernel_args.h"
#include "thread_pool.h"

namespace octavo {

template <class Args>
using Kernel = void(const Args& args, int64_t num_rows, Worker& worker);

struct KernelTable {
  Kernel<EmbedArgs>* embed;
  Kernel<RmsNormArgs>* rms_norm;
  Kernel<LinearArgs>* linear;
  Kernel<RotaryArgs>* rotary;
  Kernel<RopeAndStoreArgs>* rope_and_store;
  Kernel<PagedAttentionArgs>* paged_attention;
  Kernel<GatedActivationArgs>* gated_activation;
  Kernel<SoftCapArgs>* soft_cap;
  Kernel<CopyBlocksArgs>* copy_blocks;
  Kernel<AdjustLogitsArgs>* adjust_logits;
  Kernel<MaskLogitsArgs>* mask_logits;
  Kernel<SampleArgs>* sample;
  Kernel<LogprobsArgs>* logprobs;
  Kernel<ChosenRanksArgs>* chosen_ranks;
};

// A probe of multiplication; the kernel is null where the instruction set lacks the number format.
struct MultiplyProbe {
  Kernel<ProbeArgs>* kernel;
  int64_t operations_per_round;  // of one worker; a product and a sum are two
};

struct ProbeTable {
  Kernel<ProbeArgs>* read;
  MultiplyProbe fp32;
  MultiplyProbe bf16;
  MultiplyProbe int8;
};

}  // namespace octavo
