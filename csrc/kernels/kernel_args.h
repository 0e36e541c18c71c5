// What each kernel is called with: plain data. Strides are in elements; pointers are borrowed.
//
// Every kernel runs on all workers of a pool at once and splits its outputs among them. `num_rows` is the number of
// tokens of the step, except where a comment says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aligned_storage.h"
#include "packed_weight.h"

namespace octavo {

struct EmbedArgs {
  const int32_t* token_ids;  // [T]
  const PackedWeight* table;
  float* out;  // [T, table->num_inputs]
  int64_t out_stride;
  float scale;
};

struct RmsNormArgs {
  const float* x;
  int64_t x_stride;
  const int32_t* rows;  // [T]: row t reads x[rows[t]]; null reads x[t]
  const float* weight;  // [size]
  float* out;
  int64_t out_stride;
  int64_t size;
  float eps;
  bool accumulate;
};

struct LinearArgs {
  const float* x;  // [T, weight->num_inputs]
  int64_t x_stride;
  const PackedWeight* weight;
  const float* bias;  // [weight->num_outputs] or null
  float* out;         // [T, weight->num_outputs]
  int64_t out_stride;
  bool accumulate;
};

struct RotaryArgs {
  const int32_t* positions;           // [T]
  const double* inverse_frequencies;  // [half_dim]
  float* out;                         // [T, 2, half_dim], contiguous
  int64_t half_dim;
  float scale;
};

enum class KVDtype { kFp32, kFp16, kBf16, kInt8 };

// The K and V of one layer. The layout inside a block is that of octavo/kernels/kv_layout.py.
struct KVLayer {
  std::byte* storage;    // this layer's part of block 0
  int64_t block_stride;  // bytes from one block to the next
  int64_t part_bytes;    // bytes of K, and of V, of this layer in one block
  int64_t scale_bytes;   // bytes of the K scales, and of the V scales; 0 unless int8
  KVDtype dtype;
  int64_t block_size;
  int64_t num_kv_heads;
  int64_t head_dim;
};

struct RopeAndStoreArgs {
  float* qkv;  // [T, (num_q_heads + 2 * num_kv_heads) * head_dim]
  int64_t qkv_stride;
  const float* rotation;  // [T, 2, half_dim], contiguous
  int64_t half_dim;
  const int64_t* slot_mapping;  // [T]; -1 writes nothing
  KVLayer kv;
  int64_t num_q_heads;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;  // [head_dim] or null
  float eps;
};

// Query heads that may share a KV head.
constexpr int64_t kMaxGroupSize = 48;

// What the workers share while they run paged_attention; one may serve all layers, one call after the other.
struct AttentionWorkspace {
  AlignedStorage partials;  // grown by the kernel
  int64_t next_item = 0;    // 0 between calls
};

// num_rows is the number of sequences.
struct PagedAttentionArgs {
  const float* qkv;  // its first num_q_heads * head_dim columns are read
  int64_t qkv_stride;
  KVLayer kv;
  const int32_t* block_tables;  // [max_seqs, table_stride]
  int64_t table_stride;
  const int32_t* table_rows;    // [S]: sequence s uses block_tables[table_rows[s]]
  const int32_t* context_lens;  // [S]
  const int32_t* cu_seqlens_q;  // [S + 1]
  float* out;                   // [T, num_q_heads * head_dim]
  int64_t out_stride;
  int64_t num_q_heads;
  float scale;
  int64_t sliding_window;  // 0 = the whole context
  float soft_cap;          // 0 = none
  const float* sinks;      // [num_q_heads] or null
  AttentionWorkspace* workspace;
};

enum class Activation { kSilu, kGeluTanh };

struct GatedActivationArgs {
  const float* gate_up;  // [T, 2 * size]
  int64_t gate_up_stride;
  float* out;  // [T, size]
  int64_t out_stride;
  int64_t size;
  Activation activation;
};

struct SoftCapArgs {
  float* x;  // [T, size], in place
  int64_t x_stride;
  int64_t size;
  float cap;
};

// num_rows is the number of pairs.
struct CopyBlocksArgs {
  std::byte* storage;
  int64_t block_bytes;
  const int64_t* pairs;  // [n, 2]: source, destination
};

// num_rows is the number of entries.
struct AdjustLogitsArgs {
  float* logits;
  int64_t logits_stride;
  const int32_t* rows;
  const int32_t* token_ids;
  const float* repetition;
  const float* additive;
};

// num_rows is the number of entries.
struct MaskLogitsArgs {
  float* logits;
  int64_t logits_stride;
  int64_t vocab_size;
  const int32_t* rows;
  const uint32_t* bitmasks;  // [n, bitmask_stride]
  int64_t bitmask_stride;
};

// num_rows is the number of entries.
struct SampleArgs {
  const float* logits;
  int64_t logits_stride;
  int64_t vocab_size;
  const int32_t* rows;
  const float* parameters;  // [n, 4]: temperature, top_k, top_p, min_p
  const uint64_t* keys;     // [n, 3]: seed, index of the choice, token position
  int32_t* out;
};

// num_rows is the number of entries.
struct LogprobsArgs {
  const float* logits;
  int64_t logits_stride;
  int64_t vocab_size;
  const int32_t* rows;
  const int32_t* chosen;
  int32_t* top_ids;  // [n, 1 + num_top]
  float* top_logprobs;
  int64_t num_top;
};

// num_rows is the number of entries.
struct ChosenRanksArgs {
  const float* logits;
  int64_t logits_stride;
  int64_t vocab_size;
  const int32_t* rows;
  const int32_t* chosen;
  int32_t* out;
};

// num_rows is the number of floats to read, or of rounds to multiply.
struct ProbeArgs {
  const float* data;
  float one;       // 1, unknown to the compiler
  float* results;  // one per worker, so that the work cannot be left out
};

}  // namespace octavo
