// paged_attention: causal grouped-query attention over blocks. Twin: paged_attention in reference.py.
//
// The context is cut at fixed absolute positions: tiles of kTileTokens inside segments of kSegmentTokens. A row (one
// query of one head) gets an online soft-max over the tiles of each segment, starting afresh at every segment, and the
// segments are folded in order. A tile or segment that a row does not see changes none of its bits. So it is free to
// choose, and no result depends on it: how many rows share a pass over K and V, whether K and V are expanded to floats
// first, and who computes which segment.
//
// Work split: items are dealt one by one from a shared counter. A sequence with few queries is cut into (segment, KV
// head); its segments' results are kept and folded after a barrier. A sequence with more queries is cut into (tile of
// queries, KV head), the longest first, each folding its own segments as it goes.
//
// Positions and rows are int64; the offset of a block is block id (int32) times its stride in int64.
#include "kernels/attention_tile.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Tokens per segment: the unit in which one sequence's context is spread over threads. 512 tokens are 10 to 100 us of
// reading.
constexpr int64_t kSegmentTokens = 512;
// Rows that share one pass over K and V; 48 rows of scores and queries of 64 dimensions take 24 KiB.
constexpr int64_t kMaxRows = 48;
static_assert(kMaxRows >= kMaxGroupSize);
// From this many rows on, expanding K and V to floats once costs less than converting them for every block of rows.
constexpr int64_t kExpandRows = 13;
constexpr float kLog2E = 1.4426950408889634f;

int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A folded or foldable soft-max of one row: maximum, sum, then head_dim outputs.
constexpr int64_t kPartialHeader = 16;
int64_t partial_floats(int64_t head_dim) { return kPartialHeader + head_dim; }

// How one sequence is cut.
struct SequencePlan {
  int64_t num_queries;
  int64_t context_len;
  int64_t first_row;      // of qkv and out
  int64_t first_item;     // number of the first item of this sequence
  int64_t first_partial;  // number of its first kept partial result
  int64_t first_segment;  // first and one past the last segment that a query sees
  int64_t last_segment;
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

int64_t first_visible(const PagedAttentionArgs& args, int64_t position) {
  return args.sliding_window > 0 ? max_of(0, position + 1 - args.sliding_window) : 0;
}

Plan make_plan(const PagedAttentionArgs& args, int64_t num_sequences, SequencePlan* sequences) {
  const int64_t group_size = args.num_q_heads / args.kv.num_kv_heads;
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
    const int64_t num_tiles = ceil_div(sequence.num_queries, plan.queries_per_tile);
    const int64_t num_segments = sequence.last_segment - sequence.first_segment;
    sequence.keeps_partials = num_tiles == 1 && num_segments > 1;
    if (sequence.keeps_partials) plan.num_partials += num_segments * sequence.num_queries * args.num_q_heads;
    plan.num_items += args.kv.num_kv_heads * (sequence.keeps_partials ? num_segments : num_tiles);
  }
  return plan;
}

// One piece of work: some queries of one KV head's group over some segments.
struct Item {
  const SequencePlan* sequence;
  const int32_t* block_table;
  int64_t kv_head;
  int64_t first_query;  // of the sequence's queries in this step
  int64_t num_queries;
  int64_t first_segment;
  int64_t last_segment;
};

// This worker's memory.
struct Scratch {
  Rows rows;
  float* queries;
  float* folded;    // [kMaxRows, partial_floats]
  float* expanded;  // [kTileGranules, 2, 16 * head_dim]
};

int64_t round_to_line(int64_t num_floats) { return ceil_div(num_floats, 16) * 16; }

// Cuts `memory` into the arrays; with null memory it only counts. Returns the number of floats.
int64_t lay_out(Scratch& scratch, float* memory, int64_t head_dim) {
  float* next = memory;
  const auto take = [&next](int64_t num_floats) {
    float* taken = next;
    next += round_to_line(num_floats);
    return taken;
  };
  scratch.queries = take(kMaxRows * head_dim);
  scratch.folded = take(kMaxRows * partial_floats(head_dim));
  scratch.expanded = take(kTileGranules * 2 * kGranuleTokens * head_dim);
  Rows& rows = scratch.rows;
  rows.scores = take(kMaxRows * kTileTokens);
  rows.output = take(kMaxRows * head_dim);
  rows.maximum = take(kMaxRows);
  rows.sum = take(kMaxRows * VF::kLanes);
  rows.begin = reinterpret_cast<int64_t*>(take(2 * kMaxRows));
  rows.end = reinterpret_cast<int64_t*>(take(2 * kMaxRows));
  rows.queries = scratch.queries;
  rows.head_dim = head_dim;
  return next - memory;
}

Item item_at(const PagedAttentionArgs& args, const Plan& plan, int64_t number) {
  int64_t low = 0;
  int64_t high = plan.num_sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (plan.sequences[middle].first_item <= number ? low : high) = middle;
  }
  const SequencePlan& sequence = plan.sequences[low];
  const int64_t local = number - sequence.first_item;
  const int64_t num_heads = args.kv.num_kv_heads;
  const int32_t* table = args.block_tables + args.table_rows[low] * args.table_stride;
  if (sequence.keeps_partials) {
    const int64_t segment = sequence.first_segment + local / num_heads;
    return {&sequence, table, local % num_heads, 0, sequence.num_queries, segment, segment + 1};
  }
  const int64_t num_tiles = ceil_div(sequence.num_queries, plan.queries_per_tile);
  const int64_t first = (num_tiles - 1 - local / num_heads) * plan.queries_per_tile;
  const int64_t count = min_of(plan.queries_per_tile, sequence.num_queries - first);
  return {&sequence, table, local % num_heads, first, count, sequence.first_segment, sequence.last_segment};
}

// Copies the item's queries, scaled so that exp2 of a score difference is the weight, and notes what each row sees.
void gather_rows(const PagedAttentionArgs& args, const Plan& plan, const Item& item, Scratch& scratch) {
  const int64_t head_dim = args.kv.head_dim;
  const bool capped = args.soft_cap > 0.0f;
  const VF scale = broadcast(capped ? args.scale / args.soft_cap : args.scale * kLog2E);
  Rows& rows = scratch.rows;
  rows.cap = capped ? args.soft_cap * kLog2E : 0.0f;
  rows.num_rows = item.num_queries * plan.group_size;
  const int64_t first_position = item.sequence->context_len - item.sequence->num_queries + item.first_query;
  const float* source = args.qkv + (item.sequence->first_row + item.first_query) * args.qkv_stride +
                        item.kv_head * plan.group_size * head_dim;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const int64_t query = row / plan.group_size;
    const float* from = source + query * args.qkv_stride + row % plan.group_size * head_dim;
    float* to = scratch.queries + row * head_dim;
    for (int64_t d = 0; d < head_dim; d += VF::kLanes) store(to + d, load(from + d) * scale);
    rows.begin[row] = first_visible(args, first_position + query);
    rows.end[row] = first_position + query + 1;
  }
}

// Finds the granules in which the tile and [begin, end) meet.
Tile tile_at(const KVLayer& kv, const Item& item, int64_t start, int64_t begin, int64_t end) {
  Tile tile;
  tile.start = start;
  for (int i = 0; i < kTileGranules; ++i) {
    const int64_t position = start + i * kGranuleTokens;
    if (position + kGranuleTokens <= begin || position >= end) continue;
    const int64_t block_id = item.block_table[position / kv.block_size];
    tile.granules[i] = granule_at(kv, block_id, item.kv_head, position % kv.block_size / kGranuleTokens);
  }
  return tile;
}

template <class Elements>
void attend_expanded(Scratch& scratch, Tile& tile, int64_t begin, int64_t end) {
  const int64_t granule_floats = kGranuleTokens * scratch.rows.head_dim;
  for (int i = 0; i < kTileGranules; ++i) {
    const int64_t position = tile.start + i * kGranuleTokens;
    if (position + kGranuleTokens <= begin || position >= end) continue;
    float* k = scratch.expanded + 2 * i * granule_floats;
    expand_granule<Elements>(tile.granules[i], scratch.rows.head_dim, k, k + granule_floats);
  }
  attend_tile<Fp32Elements>(scratch.rows, tile);
}

// Leaves the item's soft-max over tokens [segment_begin, segment_end) in scratch.rows.
template <class Elements>
void attend_segment(const PagedAttentionArgs& args, const Item& item, Scratch& scratch, int64_t segment_begin,
                    int64_t segment_end) {
  Rows& rows = scratch.rows;
  for (int64_t row = 0; row < rows.num_rows; ++row) rows.maximum[row] = kLowest;
  for (int64_t i = 0; i < rows.num_rows * rows.head_dim; i += VF::kLanes) store(rows.output + i, zero());
  for (int64_t i = 0; i < rows.num_rows * VF::kLanes; i += VF::kLanes) store(rows.sum + i, zero());
  const int64_t begin = max_of(segment_begin, rows.begin[0]);
  const int64_t end = min_of(segment_end, rows.end[rows.num_rows - 1]);
  for (int64_t start = begin / kTileTokens * kTileTokens; start < end; start += kTileTokens) {
    Tile tile = tile_at(args.kv, item, start, begin, end);
    if (rows.num_rows >= kExpandRows) {
      attend_expanded<Elements>(scratch, tile, begin, end);
    } else {
      attend_tile<Elements>(rows, tile);
    }
  }
}

void attend_segment(const PagedAttentionArgs& args, const Item& item, Scratch& scratch, int64_t segment) {
  const int64_t begin = segment * kSegmentTokens;
  const int64_t end = begin + kSegmentTokens;
  switch (args.kv.dtype) {
    case KVDtype::kFp32:
      return attend_segment<Fp32Elements>(args, item, scratch, begin, end);
    case KVDtype::kFp16:
      return attend_segment<Fp16Elements>(args, item, scratch, begin, end);
    case KVDtype::kBf16:
      return attend_segment<Bf16Elements>(args, item, scratch, begin, end);
    case KVDtype::kInt8:
      return attend_segment<Int8Elements>(args, item, scratch, begin, end);
  }
}

// exp2 of one number, by the same instructions as everywhere else.
float exp2_of(float x) {
  alignas(64) float lanes[VF::kLanes];
  store(lanes, exp2(broadcast(x)));
  return lanes[0];
}

void clear_partial(float* partial, int64_t head_dim) {
  for (int64_t i = 0; i < partial_floats(head_dim); i += VF::kLanes) store(partial + i, zero());
  partial[0] = kLowest;
}

void write_partial(const Rows& rows, int64_t row, float* partial) {
  partial[0] = rows.maximum[row];
  partial[1] = reduce_add(load(rows.sum + row * VF::kLanes));
  const float* output = rows.output + row * rows.head_dim;
  for (int64_t d = 0; d < rows.head_dim; d += VF::kLanes) store(partial + kPartialHeader + d, load(output + d));
}

// Folds a later segment into `total`. A segment that the row did not see leaves it as it was.
void fold(float* total, float maximum, float sum, const float* output, int64_t head_dim) {
  const float larger = maximum > total[0] ? maximum : total[0];
  const float old_factor = exp2_of(total[0] - larger);
  const float new_factor = exp2_of(maximum - larger);
  total[0] = larger;
  total[1] = __builtin_fmaf(sum, new_factor, total[1] * old_factor);
  float* total_output = total + kPartialHeader;
  for (int64_t d = 0; d < head_dim; d += VF::kLanes) {
    const VF kept = load(total_output + d) * broadcast(old_factor);
    store(total_output + d, fma(load(output + d), broadcast(new_factor), kept));
  }
}

// Adds the head's sink to the sum and writes output / sum. Adding +0 makes one zero of the two.
void finish_row(const PagedAttentionArgs& args, float* total, int64_t row, int64_t q_head) {
  const int64_t head_dim = args.kv.head_dim;
  float factor = 1.0f;
  if (args.sinks != nullptr) {
    const float sink = args.sinks[q_head] * kLog2E;
    const float larger = sink > total[0] ? sink : total[0];
    factor = exp2_of(total[0] - larger);
    total[1] = __builtin_fmaf(total[1], factor, exp2_of(sink - larger));
  }
  const VF scale = broadcast(factor / total[1]);
  float* out = args.out + row * args.out_stride + q_head * head_dim;
  for (int64_t d = 0; d < head_dim; d += VF::kLanes)
    store(out + d, fma(load(total + kPartialHeader + d), scale, zero()));
}

float* partial_of(const PagedAttentionArgs& args, const SequencePlan& sequence, int64_t segment, int64_t query,
                  int64_t q_head) {
  const int64_t number =
      ((segment - sequence.first_segment) * sequence.num_queries + query) * args.num_q_heads + q_head;
  float* partials = reinterpret_cast<float*>(args.workspace->partials.data());
  return partials + (sequence.first_partial + number) * partial_floats(args.kv.head_dim);
}

void run_item(const PagedAttentionArgs& args, const Plan& plan, const Item& item, Scratch& scratch) {
  const int64_t head_dim = args.kv.head_dim;
  const Rows& rows = scratch.rows;
  gather_rows(args, plan, item, scratch);
  if (item.sequence->keeps_partials) {
    attend_segment(args, item, scratch, item.first_segment);
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const int64_t q_head = item.kv_head * plan.group_size + row % plan.group_size;
      write_partial(rows, row, partial_of(args, *item.sequence, item.first_segment, row / plan.group_size, q_head));
    }
    return;
  }
  const int64_t row_floats = partial_floats(head_dim);
  for (int64_t row = 0; row < rows.num_rows; ++row) clear_partial(scratch.folded + row * row_floats, head_dim);
  const int64_t first_segment = max_of(item.first_segment, rows.begin[0] / kSegmentTokens);
  const int64_t last_segment = min_of(item.last_segment, ceil_div(rows.end[rows.num_rows - 1], kSegmentTokens));
  for (int64_t segment = first_segment; segment < last_segment; ++segment) {
    attend_segment(args, item, scratch, segment);
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const float sum = reduce_add(load(rows.sum + row * VF::kLanes));
      fold(scratch.folded + row * row_floats, rows.maximum[row], sum, rows.output + row * head_dim, head_dim);
    }
  }
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const int64_t out_row = item.sequence->first_row + item.first_query + row / plan.group_size;
    finish_row(args, scratch.folded + row * row_floats, out_row,
               item.kv_head * plan.group_size + row % plan.group_size);
  }
}

// Folds the kept partials of every row of every sequence that has some; workers take rows in turn.
void fold_partials(const PagedAttentionArgs& args, const Plan& plan, Scratch& scratch, const Worker& worker) {
  const int64_t head_dim = args.kv.head_dim;
  int64_t turn = 0;
  for (int64_t s = 0; s < plan.num_sequences; ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    if (!sequence.keeps_partials) continue;
    const int64_t num_rows = sequence.num_queries * args.num_q_heads;
    for (int64_t row = 0; row < num_rows; ++row) {
      if (turn++ % worker.count != worker.index) continue;
      const int64_t query = row / args.num_q_heads;
      const int64_t q_head = row % args.num_q_heads;
      clear_partial(scratch.folded, head_dim);
      for (int64_t segment = sequence.first_segment; segment < sequence.last_segment; ++segment) {
        const float* partial = partial_of(args, sequence, segment, query, q_head);
        fold(scratch.folded, partial[0], partial[1], partial + kPartialHeader, head_dim);
      }
      finish_row(args, scratch.folded, sequence.first_row + query, q_head);
    }
  }
}

// Makes room for the partials of this step. All workers come to the same answer, so all or none meet at the barriers.
void reserve_partials(const PagedAttentionArgs& args, const Plan& plan, Worker& worker) {
  const size_t num_bytes = static_cast<size_t>(plan.num_partials * partial_floats(args.kv.head_dim)) * sizeof(float);
  if (num_bytes <= args.workspace->partials.num_bytes()) return;
  worker.barrier();
  if (worker.index == 0) args.workspace->partials = AlignedStorage(num_bytes + num_bytes / 2);
  worker.barrier();
}

// The next item's number, or at least num_items when there is none. Every worker draws one such number; the last to do
// so sets the counter back for the next call.
int64_t draw_item(AttentionWorkspace& workspace, const Plan& plan, const Worker& worker) {
  const int64_t number = __atomic_fetch_add(&workspace.next_item, 1, __ATOMIC_RELAXED);
  if (number == plan.num_items + worker.count - 1) __atomic_store_n(&workspace.next_item, 0, __ATOMIC_RELAXED);
  return number;
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, int64_t num_rows, Worker& worker) {
  Scratch scratch;
  const int64_t scratch_floats = lay_out(scratch, nullptr, args.kv.head_dim);
  const size_t plan_bytes = static_cast<size_t>(num_rows) * sizeof(SequencePlan);
  std::byte* memory = worker.scratch(static_cast<size_t>(scratch_floats) * sizeof(float) + plan_bytes);
  lay_out(scratch, reinterpret_cast<float*>(memory), args.kv.head_dim);
  auto* sequences = reinterpret_cast<SequencePlan*>(memory + static_cast<size_t>(scratch_floats) * sizeof(float));
  const Plan plan = make_plan(args, num_rows, sequences);
  reserve_partials(args, plan, worker);
  for (int64_t number; (number = draw_item(*args.workspace, plan, worker)) < plan.num_items;) {
    run_item(args, plan, item_at(args, plan, number), scratch);
  }
  if (plan.num_partials == 0) return;
  worker.barrier();
  fold_partials(args, plan, scratch, worker);
}

}  // namespace octavo::OCTAVO_ISA
