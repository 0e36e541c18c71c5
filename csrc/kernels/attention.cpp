// paged_attention: causal grouped-query attention over each sequence's blocks.
//
// Workers take whole query heads. fp32 KV only. Twin: paged_attention in reference.py.
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/kv_element.h"

namespace octavo::OCTAVO_ISA {
namespace {

struct Query {
  const float* q;
  const int32_t* blocks;
  int64_t first;  // positions first .. last are visible
  int64_t last;
  int64_t kv_head;
};

float score_of(const PagedAttentionArgs& args, const Query& query, int64_t position) {
  const std::byte* block = args.kv.storage + query.blocks[position / args.kv.block_size] * args.kv.block_stride;
  const float* k = reinterpret_cast<const float*>(block);
  float sum = 0;
  for (int64_t i = 0; i < args.kv.head_dim; ++i) {
    sum += query.q[i] * k[k_element(args.kv, query.kv_head, position % args.kv.block_size, i)];
  }
  sum *= args.scale;
  return args.soft_cap > 0 ? args.soft_cap * std::tanh(sum / args.soft_cap) : sum;
}

void attend(const PagedAttentionArgs& args, const Query& query, int64_t head, float* out) {
  float largest = args.sinks == nullptr ? -INFINITY : args.sinks[head];
  float denominator = args.sinks == nullptr ? 0.0f : 1.0f;
  for (int64_t i = 0; i < args.kv.head_dim; ++i) out[i] = 0;
  for (int64_t position = query.first; position <= query.last; ++position) {
    const float score = score_of(args, query, position);
    const float new_largest = score > largest ? score : largest;
    const float shrink = std::exp(largest - new_largest), weight = std::exp(score - new_largest);
    largest = new_largest;
    denominator = denominator * shrink + weight;
    const std::byte* block = args.kv.storage + query.blocks[position / args.kv.block_size] * args.kv.block_stride;
    const float* v = reinterpret_cast<const float*>(block + args.kv.part_bytes);
    for (int64_t i = 0; i < args.kv.head_dim; ++i) {
      out[i] = out[i] * shrink + weight * v[v_element(args.kv, query.kv_head, position % args.kv.block_size, i)];
    }
  }
  for (int64_t i = 0; i < args.kv.head_dim; ++i) out[i] /= denominator;
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, int64_t num_seqs, Worker& worker) {
  const Range heads = share_of(args.num_q_heads, worker);
  const int64_t head_dim = args.kv.head_dim, group_size = args.num_q_heads / args.kv.num_kv_heads;
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int32_t* blocks = args.block_tables + args.table_rows[seq] * args.table_stride;
    for (int64_t row = args.cu_seqlens_q[seq]; row < args.cu_seqlens_q[seq + 1]; ++row) {
      const int64_t last = args.context_lens[seq] - (args.cu_seqlens_q[seq + 1] - row);
      const int64_t first = args.sliding_window > 0 && last >= args.sliding_window ? last - args.sliding_window + 1 : 0;
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        const Query query{args.qkv + row * args.qkv_stride + head * head_dim, blocks, first, last, head / group_size};
        attend(args, query, head, args.out + row * args.out_stride + head * head_dim);
      }
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
