// How one call of paged_attention is cut into items of work. Any cut gives the same bits (see attention.cpp).
#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

// Tokens per segment: the unit in which one sequence's context is spread over threads. 512 tokens are 10 to 100 us of
// reading.
constexpr int64_t kSegmentTokens = 512;
// Rows (a query of a head) that an item may have: enough that expanding K and V to floats once for all of them costs
// little, few enough that 64 dimensions of queries, scores and outputs stay in the second cache beside K and V.
constexpr int64_t kMaxRows = 96;
static_assert(kMaxRows >= kMaxGroupSize);
// A folded or foldable soft-max of one row: maximum, sum, then head_dim outputs.
constexpr int64_t kPartialHeader = 16;
static inline int64_t partial_floats(int64_t head_dim) { return kPartialHeader + head_dim; }
// The most memory for results of single segments. Sequences beyond it have all their segments read by one worker.
constexpr int64_t kMaxPartialBytes = 16 << 20;
// With fewer items than this for each worker, KV heads are dealt one by one.
constexpr int64_t kItemsPerWorker = 4;

// The first position that a query sees.
static inline int64_t first_visible(const PagedAttentionArgs& args, int64_t position) {
  return args.sliding_window > 0 ? max_of(0, position + 1 - args.sliding_window) : 0;
}

// How one sequence is cut: into (segment, some KV heads) if its queries fit into one tile of queries and see several
// segments; else into (tile of queries, some KV heads).
struct SequencePlan {
  int64_t num_queries;
  int64_t context_len;
  int64_t first_row;  // of qkv and out
  int64_t first_item;
  int64_t first_partial;  // number of its first kept partial result
  int64_t first_segment;  // first and one past the last segment that a query sees
  int64_t last_segment;
  int64_t num_tiles;  // of queries
  int64_t num_head_parts;
  bool keeps_partials;
};

struct Plan {
  SequencePlan* sequences;  // [num_sequences]
  int64_t num_sequences;
  int64_t group_size;
  int64_t queries_per_tile;
  int64_t num_items;
  int64_t num_partials;
};

// One item of work: some queries of some KV heads' groups over some segments.
struct Item {
  const SequencePlan* sequence;
  const int32_t* block_table;
  int64_t first_head;
  int64_t num_heads;
  int64_t first_query;  // of the sequence's queries in this step
  int64_t num_queries;
  int64_t first_position;  // of the first query
  int64_t first_segment;   // first and one past the last that this item looks at
  int64_t last_segment;
};

static inline int64_t num_head_parts(const PagedAttentionArgs& args, const SequencePlan& sequence, bool one_by_one) {
  const int64_t num_heads = args.kv.num_kv_heads;
  if (one_by_one || sequence.num_tiles > 1) return num_heads;
  const int64_t heads_that_fit = max_of(1, kMaxRows * num_heads / max_of(1, sequence.num_queries * args.num_q_heads));
  return ceil_div(num_heads, heads_that_fit);
}

static inline Plan cut_sequences(const PagedAttentionArgs& args, int64_t num_sequences, SequencePlan* sequences,
                                 bool heads_one_by_one) {
  const int64_t group_size = args.num_q_heads / args.kv.num_kv_heads;
  const int64_t most_partials =
      kMaxPartialBytes / (partial_floats(args.kv.head_dim) * static_cast<int64_t>(sizeof(float)));
  Plan plan = {sequences, num_sequences, group_size, max_of(1, kMaxRows / group_size), 0, 0};
  for (int64_t s = 0; s < num_sequences; ++s) {
    SequencePlan& sequence = sequences[s];
    sequence.first_row = args.cu_seqlens_q[s];
    sequence.num_queries = args.cu_seqlens_q[s + 1] - sequence.first_row;
    sequence.context_len = args.context_lens[s];
    sequence.first_segment = first_visible(args, sequence.context_len - sequence.num_queries) / kSegmentTokens;
    sequence.last_segment = ceil_div(sequence.context_len, kSegmentTokens);
    sequence.first_item = plan.num_items;
    sequence.first_partial = plan.num_partials;
    sequence.num_tiles = ceil_div(sequence.num_queries, plan.queries_per_tile);
    sequence.num_head_parts = num_head_parts(args, sequence, heads_one_by_one);
    const int64_t num_segments = sequence.last_segment - sequence.first_segment;
    const int64_t num_partials = plan.num_partials + num_segments * sequence.num_queries * args.num_q_heads;
    sequence.keeps_partials = sequence.num_tiles == 1 && num_segments > 1 && num_partials <= most_partials;
    if (sequence.keeps_partials) plan.num_partials = num_partials;
    plan.num_items += sequence.num_head_parts * (sequence.keeps_partials ? num_segments : sequence.num_tiles);
  }
  return plan;
}

static inline Plan make_plan(const PagedAttentionArgs& args, int64_t num_sequences, SequencePlan* sequences,
                             const Worker& worker) {
  const Plan plan = cut_sequences(args, num_sequences, sequences, false);
  if (plan.num_items >= kItemsPerWorker * worker.count) return plan;
  return cut_sequences(args, num_sequences, sequences, true);
}

static inline const SequencePlan& sequence_of(const Plan& plan, int64_t item_number) {
  int64_t low = 0;
  int64_t high = plan.num_sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (plan.sequences[middle].first_item <= item_number ? low : high) = middle;
  }
  return plan.sequences[low];
}

// Returns item `number`; an item without heads if there is none. Of tiles of queries, the last (the longest) comes
// first.
static inline Item item_at(const PagedAttentionArgs& args, const Plan& plan, int64_t number) {
  Item item = {};
  if (number >= plan.num_items) return item;
  const SequencePlan& sequence = sequence_of(plan, number);
  const int64_t part = (number - sequence.first_item) % sequence.num_head_parts;
  const int64_t local = (number - sequence.first_item) / sequence.num_head_parts;
  item.sequence = &sequence;
  item.block_table = args.block_tables + args.table_rows[&sequence - plan.sequences] * args.table_stride;
  item.first_head = args.kv.num_kv_heads * part / sequence.num_head_parts;
  item.num_heads = args.kv.num_kv_heads * (part + 1) / sequence.num_head_parts - item.first_head;
  if (!sequence.keeps_partials) item.first_query = (sequence.num_tiles - 1 - local) * plan.queries_per_tile;
  item.num_queries = min_of(plan.queries_per_tile, sequence.num_queries - item.first_query);
  item.first_position = sequence.context_len - sequence.num_queries + item.first_query;
  if (sequence.keeps_partials) {
    item.first_segment = sequence.first_segment + local;
    item.last_segment = item.first_segment + 1;
  } else {
    item.first_segment = first_visible(args, item.first_position) / kSegmentTokens;
    item.last_segment = ceil_div(item.first_position + item.num_queries, kSegmentTokens);
  }
  return item;
}

}  // namespace octavo::OCTAVO_ISA
