#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

extern const KernelTable kKernelTable = {
    embed,    rms_norm,    linear,        rotary,      rope_and_store, paged_attention, gated_activation,
    soft_cap, copy_blocks, adjust_logits, mask_logits, sample,         logprobs,        chosen_ranks,
};

}  // namespace octavo::OCTAVO_ISA
