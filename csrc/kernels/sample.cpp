// sample, logprobs, chosen_ranks. Workers take whole entries. Twins of the same names in reference.py.
#include <cmath>

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Philox4x32-10 with key = seed and counter = (position, index); returns a double in [0, 1) of 53 bits.
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

// NaN counts as -inf.
float clean(float logit) { return logit == logit ? logit : -INFINITY; }

int64_t argmax(const float* logits, int64_t size) {
  int64_t best = 0;
  for (int64_t i = 1; i < size; ++i) {
    if (clean(logits[i]) > clean(logits[best])) best = i;
  }
  return best;
}

}  // namespace

void sample(const SampleArgs& args, int64_t num_entries, Worker& worker) {
  const Range entries = share_of(num_entries, worker);
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    const float* logits = args.logits + args.rows[entry] * args.logits_stride;
    const uint64_t* key = args.keys + 3 * entry;
    const int64_t best = argmax(logits, args.vocab_size);
    args.out[entry] = static_cast<int32_t>(best);
    const float temperature = args.parameters[4 * entry];
    if (temperature == 0 || !std::isfinite(logits[best])) continue;
    double total = 0;
    for (int64_t i = 0; i < args.vocab_size; ++i) total += std::exp((clean(logits[i]) - logits[best]) / temperature);
    double left = uniform_draw(key[0], key[1], key[2]) * total;
    for (int64_t i = 0; i < args.vocab_size && left >= 0; ++i) {
      const float weight = std::exp((clean(logits[i]) - logits[best]) / temperature);
      left -= weight;
      if (weight > 0) args.out[entry] = static_cast<int32_t>(i);
    }
  }
}

void logprobs(const LogprobsArgs& args, int64_t num_entries, Worker& worker) {
  const Range entries = share_of(num_entries, worker);
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    const float* logits = args.logits + args.rows[entry] * args.logits_stride;
    int32_t* ids = args.top_ids + entry * (1 + args.num_top);
    float* values = args.top_logprobs + entry * (1 + args.num_top);
    const float largest = logits[argmax(logits, args.vocab_size)];
    double total = 0;
    for (int64_t i = 0; i < args.vocab_size; ++i) total += std::exp(clean(logits[i]) - largest);
    ids[0] = args.chosen[entry];
    for (int64_t k = 1; k <= args.num_top; ++k) {
      int64_t best = -1;
      for (int64_t i = 0; i < args.vocab_size; ++i) {
        const bool follows = k == 1 || clean(logits[i]) < clean(logits[ids[k - 1]]) ||
                             (clean(logits[i]) == clean(logits[ids[k - 1]]) && i > ids[k - 1]);
        if (follows && (best < 0 || clean(logits[i]) > clean(logits[best]))) best = i;
      }
      ids[k] = static_cast<int32_t>(best);
    }
    for (int64_t k = 0; k <= args.num_top; ++k) {
      values[k] = static_cast<float>(static_cast<double>(clean(logits[ids[k]])) - largest - std::log(total));
    }
  }
}

void chosen_ranks(const ChosenRanksArgs& args, int64_t num_entries, Worker& worker) {
  const Range entries = share_of(num_entries, worker);
  for (int64_t entry = entries.begin; entry < entries.end; ++entry) {
    const float* logits = args.logits + args.rows[entry] * args.logits_stride;
    const float chosen = clean(logits[args.chosen[entry]]);
    int32_t rank = 1;
    for (int64_t i = 0; i < args.vocab_size; ++i) rank += logits[i] > chosen;
    args.out[entry] = rank;
  }
}

}  // namespace octavo::OCTAVO_ISA
