// Where one element of K or V lies, and how to read and write it: the scalar view of a KVLayer.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kTokensPerGranule = 16;

static inline int64_t k_element(const KVLayer& kv, int64_t head, int64_t offset, int64_t i) {
  const int64_t granule = head * (kv.block_size / kTokensPerGranule) + offset / kTokensPerGranule;
  return (granule * kv.head_dim + i) * kTokensPerGranule + offset % kTokensPerGranule;
}
static inline int64_t v_element(const KVLayer& kv, int64_t head, int64_t offset, int64_t i) {
  return (head * kv.block_size + offset) * kv.head_dim + i;
}

}  // namespace octavo::OCTAVO_ISA
