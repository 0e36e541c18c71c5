// How the elements of K and V lie in a granule of sixteen tokens, and how a kernel reads them as floats.
//
// A granule of K is a matrix of head_dim rows and 16 columns (one per token); a granule of V is a matrix of 16 rows
// (one per token) and head_dim columns. Both are stored by rows, except that bf16 keeps two rows together: element (k,
// c) lies beside (k + 1, c) for even k, so that a shift and a mask turn one load into both rows.
#pragma once

#include "kernels/kernels.h"
#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int kGranuleTokens = 16;
constexpr int kGranuleVectors = kGranuleTokens / VF::kLanes;

// Begins to bring a line from memory into the second cache: the first is too small for what is read ahead.
static inline void fetch(const void* address) { __builtin_prefetch(address, 0, 2); }

// Each kind gives, for a matrix whose rows have `stride` elements, and for even k:
//   load<kOdd>(base, stride, k, column)   columns column .. column + kLanes of row k + kOdd
//   fetch_rows(base, k)                   fetches 32 elements from 16 * k on: rows k and k + 1 of a K matrix
struct Fp32Elements {
  template <int kOdd>
  static inline VF load(const std::byte* base, int64_t stride, int64_t k, int64_t column) {
    return ::octavo::OCTAVO_ISA::load(reinterpret_cast<const float*>(base) + (k + kOdd) * stride + column);
  }
  static inline void fetch_rows(const std::byte* base, int64_t k) {
    fetch(base + k * 64);
    fetch(base + k * 64 + 64);
  }
};

// Floats that expand_granule wrote: panels of sixteen columns, one after the other, so that every panel is read in one
// run.
struct ExpandedElements {
  static inline int64_t offset(int64_t num_rows, int64_t k, int64_t column) {
    return (column / kGranuleTokens * num_rows + k) * kGranuleTokens + column % kGranuleTokens;
  }
  template <int kOdd>
  static inline VF load(const std::byte* base, int64_t, int64_t k, int64_t column) {
    return ::octavo::OCTAVO_ISA::load(reinterpret_cast<const float*>(base) + offset(kGranuleTokens, k + kOdd, column));
  }
  static inline void fetch_rows(const std::byte*, int64_t) {}
};

struct Fp16Elements {
  template <int kOdd>
  static inline VF load(const std::byte* base, int64_t stride, int64_t k, int64_t column) {
    return load_fp16(reinterpret_cast<const uint16_t*>(base) + (k + kOdd) * stride + column);
  }
  static inline void fetch_rows(const std::byte* base, int64_t k) { fetch(base + k * 32); }
};

struct Bf16Elements {
  template <int kOdd>
  static inline VF load(const std::byte* base, int64_t stride, int64_t k, int64_t column) {
    const uint16_t* pairs = reinterpret_cast<const uint16_t*>(base) + k * stride + 2 * column;
    return kOdd == 0 ? load_bf16_first(pairs) : load_bf16_second(pairs);
  }
  static inline void fetch_rows(const std::byte* base, int64_t k) { fetch(base + k * 32); }
};

struct Int8Elements {
  template <int kOdd>
  static inline VF load(const std::byte* base, int64_t stride, int64_t k, int64_t column) {
    return load_int8(reinterpret_cast<const int8_t*>(base) + (k + kOdd) * stride + column);
  }
  static inline void fetch_rows(const std::byte* base, int64_t k) { fetch(base + k * 16); }
};

// Where one head's sixteen tokens lie.
struct Granule {
  std::byte* k;
  std::byte* v;
  float* k_scales;  // [16]; null unless int8
  float* v_scales;
};

static inline int64_t element_bytes(KVDtype dtype) {
  switch (dtype) {
    case KVDtype::kFp32:
      return 4;
    case KVDtype::kFp16:
    case KVDtype::kBf16:
      return 2;
    case KVDtype::kInt8:
      return 1;
  }
  return 0;
}

// Returns granule `index` (first token offset / 16) of a head in a block.
static inline Granule granule_at(const KVLayer& kv, int64_t block_id, int64_t head, int64_t index) {
  const int64_t number = head * (kv.block_size / kGranuleTokens) + index;
  std::byte* block = kv.storage + block_id * kv.block_stride;
  std::byte* k = block + number * kGranuleTokens * kv.head_dim * element_bytes(kv.dtype);
  if (kv.dtype != KVDtype::kInt8) return {k, k + kv.part_bytes, nullptr, nullptr};
  float* k_scales = reinterpret_cast<float*>(block + 2 * kv.part_bytes) + number * kGranuleTokens;
  return {k, k + kv.part_bytes, k_scales, k_scales + kv.scale_bytes / static_cast<int64_t>(sizeof(float))};
}

}  // namespace octavo::OCTAVO_ISA
