// logprobs and chosen_ranks: how probable tokens are under a row of raw logits.
//
// Workers take whole entries. Twins of the same names in reference.py.
#include <algorithm>

#include "kernels/row_scan.h"

namespace octavo::OCTAVO_ISA {
namespace {

struct Ranked {
  float logit;
  int32_t id;
  bool operator<(const Ranked& other) const { return logit != other.logit ? logit > other.logit : id < other.id; }
};

// Writes the ids of the num_top highest logits, best first.
void write_top_ids(const float* row, int64_t size, float largest, int64_t num_top, std::byte* scratch, int32_t* ids) {
  Candidates candidates = no_candidates(scratch, size);
  collect_highest(row, size, largest, num_top, candidates);
  Ranked* ranked = reinterpret_cast<Ranked*>(scratch + candidate_bytes(size));
  for (int64_t i = 0; i < num_top; ++i) ranked[i] = {candidates.logits[i], candidates.ids[i]};
  std::sort(ranked, ranked + num_top);
  for (int64_t i = 0; i < num_top; ++i) ids[i] = ranked[i].id;
}

}  // namespace

void logprobs(const LogprobsArgs& args, int64_t num_entries, Worker& worker) {
  const int64_t size = args.vocab_size;
  std::byte* scratch = worker.scratch(candidate_bytes(size) + args.num_top * sizeof(Ranked));
  const Range entries = share_of(num_entries, worker);
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    const float* row = args.logits + args.rows[entry] * args.logits_stride;
    int32_t* ids = args.top_ids + entry * (1 + args.num_top);
    float* values = args.top_logprobs + entry * (1 + args.num_top);
    const float largest = row_max(row, size);
    ids[0] = args.chosen[entry];
    if (args.num_top > 0) write_top_ids(row, size, largest, args.num_top, scratch, ids + 1);
    const double log_total = std::log(write_weights(row, size, largest, 1.0f, reinterpret_cast<float*>(scratch)));
    for (int64_t k = 0; k <= args.num_top; ++k) {
      values[k] = static_cast<float>(static_cast<double>(clean(row[ids[k]])) - largest - log_total);
    }
  }
}

void chosen_ranks(const ChosenRanksArgs& args, int64_t num_entries, Worker& worker) {
  const Range entries = share_of(num_entries, worker);
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    const float* row = args.logits + args.rows[entry] * args.logits_stride;
    const VF chosen = broadcast(clean(row[args.chosen[entry]]));
    int32_t rank = 1;
    for (int64_t i = 0; i < args.vocab_size; i += VF::kLanes) {
      rank +=
          __builtin_popcount(mask_less(chosen, load_clean(row, i, args.vocab_size)) & lanes_inside(i, args.vocab_size));
    }
    args.out[entry] = rank;
  }
}

}  // namespace octavo::OCTAVO_ISA
