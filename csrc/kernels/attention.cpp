// paged_attention: causal grouped-query attention over blocks. Twin: paged_attention in reference.py.
//
// The context is cut at fixed absolute positions: tiles of kTileTokens inside segments of kSegmentTokens. A row (one
// query of one head) gets an online soft-max over the tiles of each segment, starting afresh at every segment, and the
// segments are folded in order. A tile or segment that a row does not see changes none of its bits. So it is free to
// choose, and no result depends on it: how many rows share a pass over K and V, whether K and V are expanded to floats
// first, and who computes which segment.
//
// Work split: the items of attention_plan.h are dealt one by one from a shared counter. An item of one segment of
// several keeps its results, to be folded after a barrier; any other folds its own segments as it goes.
//
// Positions and rows are int64; the offset of a block is block id (int32) times its stride in int64.
#include "kernels/attention_stretch.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

// This worker's memory.
struct Scratch {
  Rows rows;
  float* queries;   // [kMaxRows, head_dim]
  float* folded;    // [kMaxRows, partial_floats]
  float* expanded;  // see attend_stretch
  SequencePlan* sequences;
};

// Every array is a multiple of 64 bytes.
static_assert(kMaxRows % 16 == 0);

Scratch lay_out_scratch(Worker& worker, int64_t head_dim, int64_t num_sequences) {
  const int64_t row_floats = 2 * head_dim + partial_floats(head_dim) + kTileTokens + 1 + VF::kLanes + 4;
  const int64_t expanded_floats = kTileGranules * 2 * kGranuleTokens * head_dim;
  const size_t plan_bytes = static_cast<size_t>(num_sequences) * sizeof(SequencePlan);
  const size_t float_bytes = static_cast<size_t>(kMaxRows * row_floats + expanded_floats) * sizeof(float);
  std::byte* memory = worker.scratch(float_bytes + plan_bytes);
  float* next = reinterpret_cast<float*>(memory);
  const auto take = [&next](int64_t num_floats) {
    next += num_floats;
    return next - num_floats;
  };
  Scratch scratch = {};
  scratch.queries = take(kMaxRows * head_dim);
  scratch.folded = take(kMaxRows * partial_floats(head_dim));
  scratch.expanded = take(expanded_floats);
  Rows& rows = scratch.rows;
  rows.head_dim = head_dim;
  rows.queries = scratch.queries;
  rows.scores = take(kMaxRows * kTileTokens);
  rows.output = take(kMaxRows * head_dim);
  rows.maximum = take(kMaxRows);
  rows.sum = take(kMaxRows * VF::kLanes);
  rows.begin = reinterpret_cast<int64_t*>(take(2 * kMaxRows));
  rows.end = reinterpret_cast<int64_t*>(take(2 * kMaxRows));
  scratch.sequences = reinterpret_cast<SequencePlan*>(memory + float_bytes);
  return scratch;
}

// The rows of an item: for each of its KV heads, for each of its queries, the query heads of the group.
struct RowPlace {
  int64_t query;  // of the sequence's queries in this step
  int64_t q_head;
};

RowPlace place_of(const Plan& plan, const Item& item, int64_t row) {
  const int64_t kv_head = item.first_head + row / (item.num_queries * plan.group_size);
  return {item.first_query + row / plan.group_size % item.num_queries,
          kv_head * plan.group_size + row % plan.group_size};
}

// Copies the item's queries, scaled so that exp2 of a score difference is the weight, and notes what each row sees.
void gather_rows(const PagedAttentionArgs& args, const Plan& plan, const Item& item, Scratch& scratch) {
  const int64_t head_dim = args.kv.head_dim;
  const bool capped = args.soft_cap > 0.0f;
  const VF scale = broadcast(capped ? args.scale / args.soft_cap : args.scale * kLog2E);
  Rows& rows = scratch.rows;
  rows.cap = capped ? args.soft_cap * kLog2E : 0.0f;
  rows.num_rows = item.num_heads * item.num_queries * plan.group_size;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const RowPlace place = place_of(plan, item, row);
    const float* from = args.qkv + (item.sequence->first_row + place.query) * args.qkv_stride + place.q_head * head_dim;
    float* to = scratch.queries + row * head_dim;
    for (int64_t d = 0; d < head_dim; d += VF::kLanes) store(to + d, load(from + d) * scale);
    const int64_t position = item.first_position + place.query - item.first_query;
    rows.begin[row] = first_visible(args, position);
    rows.end[row] = position + 1;
  }
}

void clear_soft_max(const Rows& rows) {
  for (int64_t row = 0; row < rows.num_rows; ++row) rows.maximum[row] = kLowest;
  for (int64_t i = 0; i < rows.num_rows * rows.head_dim; i += VF::kLanes) store(rows.output + i, zero());
  for (int64_t i = 0; i < rows.num_rows * VF::kLanes; i += VF::kLanes) store(rows.sum + i, zero());
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

float* partial_of(const PagedAttentionArgs& args, const SequencePlan& sequence, int64_t segment, RowPlace place) {
  const int64_t query = (segment - sequence.first_segment) * sequence.num_queries + place.query;
  float* partials = reinterpret_cast<float*>(args.workspace->partials.data());
  const int64_t number = sequence.first_partial + query * args.num_q_heads + place.q_head;
  return partials + number * partial_floats(args.kv.head_dim);
}

void keep_partials(const PagedAttentionArgs& args, const Plan& plan, const Item& item, const Rows& rows) {
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    write_partial(rows, row, partial_of(args, *item.sequence, item.first_segment, place_of(plan, item, row)));
  }
}

// `after` is what this worker will read next.
void run_item(const PagedAttentionArgs& args, const Plan& plan, const Item& item, const Stretch& after,
              Scratch& scratch) {
  const int64_t head_dim = args.kv.head_dim;
  const int64_t row_floats = partial_floats(head_dim);
  const Rows& rows = scratch.rows;
  gather_rows(args, plan, item, scratch);
  for (int64_t row = 0; row < rows.num_rows; ++row) clear_partial(scratch.folded + row * row_floats, head_dim);
  for (int64_t segment = item.first_segment; segment < item.last_segment; ++segment) {
    const bool is_last = segment + 1 == item.last_segment;
    const Stretch next = is_last ? after : stretch_of(args, item, segment + 1);
    clear_soft_max(rows);
    attend_stretch(args.kv, stretch_of(args, item, segment), next, rows, scratch.expanded);
    if (item.sequence->keeps_partials) return keep_partials(args, plan, item, rows);
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const float sum = reduce_add(load(rows.sum + row * VF::kLanes));
      fold(scratch.folded + row * row_floats, rows.maximum[row], sum, rows.output + row * head_dim, head_dim);
    }
  }
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const RowPlace place = place_of(plan, item, row);
    finish_row(args, scratch.folded + row * row_floats, item.sequence->first_row + place.query, place.q_head);
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
      const RowPlace place = {row / args.num_q_heads, row % args.num_q_heads};
      clear_partial(scratch.folded, head_dim);
      for (int64_t segment = sequence.first_segment; segment < sequence.last_segment; ++segment) {
        const float* partial = partial_of(args, sequence, segment, place);
        fold(scratch.folded, partial[0], partial[1], partial + kPartialHeader, head_dim);
      }
      finish_row(args, scratch.folded, sequence.first_row + place.query, place.q_head);
    }
  }
}

// Makes room for the partials of this step. All workers come to the same answer, so all or none meet at the barriers.
void reserve_partials(const PagedAttentionArgs& args, const Plan& plan, Worker& worker) {
  const size_t num_bytes = static_cast<size_t>(plan.num_partials * partial_floats(args.kv.head_dim)) * sizeof(float);
  if (num_bytes <= args.workspace->partials.num_bytes()) return;
  worker.barrier();
  if (worker.index == 0) args.workspace->partials = AlignedStorage(min_of(num_bytes + num_bytes / 2, kMaxPartialBytes));
  worker.barrier();
}

// The next item's number, or at least num_items when there is none. Every worker draws one such number; the last to do
// so sets the counter back for the next call.
int64_t draw_item(AttentionWorkspace& workspace, const Plan& plan, const Worker& worker) {
  const int64_t number = __atomic_fetch_add(&workspace.next_item, 1, __ATOMIC_RELAXED);
  if (number == plan.num_items + worker.count - 1) __atomic_store_n(&workspace.next_item, 0, __ATOMIC_RELAXED);
  return number;
}

// Runs items until there are none. Each is drawn while the one before it runs, so that its first tile can be fetched.
void run_items(const PagedAttentionArgs& args, const Plan& plan, Scratch& scratch, const Worker& worker) {
  int64_t number = draw_item(*args.workspace, plan, worker);
  Item item = item_at(args, plan, number);
  while (number < plan.num_items) {
    number = draw_item(*args.workspace, plan, worker);
    const Item next = item_at(args, plan, number);
    run_item(args, plan, item, stretch_of(args, next, next.first_segment), scratch);
    item = next;
  }
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, int64_t num_rows, Worker& worker) {
  Scratch scratch = lay_out_scratch(worker, args.kv.head_dim, num_rows);
  const Plan plan = make_plan(args, num_rows, scratch.sequences, worker);
  reserve_partials(args, plan, worker);
  run_items(args, plan, scratch, worker);
  if (plan.num_partials == 0) return;
  worker.barrier();
  fold_partials(args, plan, scratch, worker);
}

}  // namespace octavo::OCTAVO_ISA
