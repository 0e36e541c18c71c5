// sample: draws one token from a row of logits.
//
// Workers take whole entries. A row without limits is drawn from all its weights; with top_k, top_p or min_p, only from
// the candidates that can survive them, usually a few hundred. Sums are in double precision. Twin: sample in
// reference.py.
#include "kernels/row_scan.h"

namespace octavo::OCTAVO_ISA {
namespace {

struct SamplingParameters {
  float temperature, top_k, top_p, min_p;
};

// Philox4x32-10 (Salmon et al., SC 2011) with key = seed and counter = (position, index of the choice): 53 bits in [0,
// 1).
double uniform_draw(uint64_t seed, uint64_t index, uint64_t position) {
  uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                         static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const uint64_t bits = static_cast<uint64_t>(counter[1]) << 32 | counter[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

double sum_of(const float* weights, int64_t size) {
  DoubleSum sum;
  for (int64_t i = 0; i < size; i += VF::kLanes) sum.add(load_partial(weights + i, lanes_left(size - i)));
  return sum.total();
}

// Inverts the cumulative sum: whole pieces first, then element by element inside the piece.
int64_t pick(const float* weights, int64_t size, double draw) {
  constexpr int64_t kPiece = 1024;
  double total = 0;
  for (int64_t i = 0; i < size; i += kPiece) total += sum_of(weights + i, size - i < kPiece ? size - i : kPiece);
  const double target = draw * total;
  double cumulative = 0;
  int64_t last = 0;  // the last element with weight so far: the answer when rounding leaves the target unreached
  for (int64_t i = 0; i < size; i += kPiece) {
    const int64_t end = size - i < kPiece ? size : i + kPiece;
    const double sum = sum_of(weights + i, end - i);
    if (cumulative + sum <= target && end < size) {
      cumulative += sum;
      continue;
    }
    for (int64_t j = i; j < end; ++j) {
      cumulative += weights[j];
      if (weights[j] > 0) last = j;
      if (cumulative > target) return last;
    }
  }
  return last;
}

// Collects enough of the highest logits to hold a share top_p of the row's weight.
void collect_heaviest(const float* row, int64_t size, float largest, const SamplingParameters& parameters,
                      Candidates& candidates) {
  const double total = write_weights(row, size, largest, parameters.temperature, candidates.row_weights);
  // Nearly always one of the first tries is enough; each is one pass over the row, and the last takes every token.
  for (const float gap : {4.0f, 8.0f, 12.0f, 16.0f, INFINITY}) {
    collect(row, size, largest - gap * parameters.temperature, candidates, candidates.row_weights);
    if (sum_of(candidates.weights, candidates.size) >= parameters.top_p * total) break;
  }
  keep_heaviest(candidates, parameters.top_p * total);
}

void drop_light(Candidates& candidates, float least_weight) {
  int64_t kept = 0;
  for (int64_t i = 0; i < candidates.size; ++i) {
    candidates.ids[kept] = candidates.ids[i];
    candidates.logits[kept] = candidates.logits[i];
    candidates.weights[kept] = candidates.weights[i];
    kept += candidates.weights[i] >= least_weight;
  }
  candidates.size = kept;
}

// Leaves in `candidates` the tokens that top_k, min_p and top_p keep, with their weights, and others without weight.
void limit(const float* row, int64_t size, float largest, const SamplingParameters& parameters,
           Candidates& candidates) {
  if (parameters.top_k > 0 && parameters.top_k < static_cast<float>(size)) {
    collect_highest(row, size, largest, static_cast<int64_t>(parameters.top_k), candidates);
  } else if (parameters.min_p > 0) {
    // A little more than needed, so that rounding loses nobody: the exact comparison follows.
    const float least_exponent = std::log(parameters.min_p) * 1.001f - 0.001f;
    collect(row, size, largest + parameters.temperature * least_exponent, candidates);
  } else {
    return collect_heaviest(row, size, largest, parameters, candidates);
  }
  write_weights(candidates.logits, candidates.size, largest, parameters.temperature, candidates.weights);
  drop_light(candidates, parameters.min_p);
  if (parameters.top_p < 1 && candidates.size > 0) {
    keep_heaviest(candidates, parameters.top_p * sum_of(candidates.weights, candidates.size));
  }
}

int64_t draw_token(const float* row, int64_t size, const SamplingParameters& parameters, const uint64_t* key,
                   std::byte* scratch) {
  const float largest = row_max(row, size);
  if (parameters.temperature == 0 || !std::isfinite(largest)) return first_equal(row, size, largest);
  const double draw = uniform_draw(key[0], key[1], key[2]);
  Candidates candidates = no_candidates(scratch, size);
  if (parameters.top_k == 0 && parameters.top_p >= 1 && parameters.min_p <= 0) {
    write_weights(row, size, largest, parameters.temperature, candidates.weights);
    return pick(candidates.weights, size, draw);
  }
  limit(row, size, largest, parameters, candidates);
  if (candidates.size == 0) return first_equal(row, size, largest);  // min_p > 1
  return candidates.ids[pick(candidates.weights, candidates.size, draw)];
}

}  // namespace

void sample(const SampleArgs& args, int64_t num_entries, Worker& worker) {
  std::byte* scratch = worker.scratch(candidate_bytes(args.vocab_size));
  const Range entries = share_of(num_entries, worker);
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    const float* p = args.parameters + 4 * entry;
    const float* row = args.logits + args.rows[entry] * args.logits_stride;
    const int64_t token = draw_token(row, args.vocab_size, {p[0], p[1], p[2], p[3]}, args.keys + 3 * entry, scratch);
    args.out[entry] = static_cast<int32_t>(token);
  }
}

}  // namespace octavo::OCTAVO_ISA
