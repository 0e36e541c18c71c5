// Passes over one row of logits that drawing and log-probabilities share. NaN counts as -inf everywhere.
#pragma once

#include <cmath>

#include "kernels/kernels.h"
#include "simd/simd_math.h"

namespace octavo::OCTAVO_ISA {

static inline float clean(float logit) { return logit == logit ? logit : -INFINITY; }

static inline VF load_clean(const float* row, int64_t i, int64_t size) {
  return max(load_partial(row + i, lanes_left(size - i)), broadcast(-INFINITY));
}

// The bits of the lanes that lie inside the row.
static inline uint32_t lanes_inside(int64_t i, int64_t size) { return (uint32_t{1} << lanes_left(size - i)) - 1; }

static inline float row_max(const float* row, int64_t size) {
  const VF lowest = broadcast(-INFINITY);
  VF best[4] = {lowest, lowest, lowest, lowest};
  int64_t i = 0;
  for (; i + 4 * VF::kLanes <= size; i += 4 * VF::kLanes) {
    for (int chain = 0; chain < 4; ++chain) best[chain] = max(load(row + i + chain * VF::kLanes), best[chain]);
  }
  float largest = reduce_max(max(max(best[0], best[1]), max(best[2], best[3])));
  for (; i < size; ++i) largest = row[i] > largest ? row[i] : largest;
  return largest;
}

// The lowest id with that value; 0 if there is none.
static inline int64_t first_equal(const float* row, int64_t size, float value) {
  for (int64_t i = 0; i < size; i += VF::kLanes) {
    const uint32_t found = mask_less_equal(broadcast(value), load_clean(row, i, size)) & lanes_inside(i, size);
    if (found != 0) return i + __builtin_ctz(found);
  }
  return 0;
}

// Writes exp((row - largest) / temperature); returns the sum.
static inline double write_weights(const float* row, int64_t size, float largest, float temperature, float* weights) {
  DoubleSum sum;
  for (int64_t i = 0; i < size; i += VF::kLanes) {
    // A quotient, not a product: the reciprocal of a tiny temperature would overflow.
    const VF exponent = (load_clean(row, i, size) - broadcast(largest)) / broadcast(temperature);
    store_partial(weights + i, exp(exponent), lanes_left(size - i));
    sum.add(load_partial(weights + i, lanes_left(size - i)));
  }
  return sum.total();
}

// Tokens that may be among the most probable ones: parallel arrays in rising order of id, each with room for the
// vocabulary, and for the rest of a vector that is stored at its end.
struct Candidates {
  int32_t* ids;
  float* logits;
  float* weights;
  float* row_weights;   // a weight for every token of the row
  float* rest_logits;   // work space of the selection
  float* rest_weights;  // work space of the selection
  int64_t size;
};

static inline int64_t candidate_room(int64_t vocab_size) { return vocab_size + VF::kLanes; }

// Bytes of scratch for the candidates of a row of vocab_size logits.
static inline size_t candidate_bytes(int64_t vocab_size) {
  return 6 * sizeof(float) * static_cast<size_t>(candidate_room(vocab_size));
}

static inline Candidates no_candidates(std::byte* scratch, int64_t vocab_size) {
  float* floats = reinterpret_cast<float*>(scratch);
  const int64_t room = candidate_room(vocab_size);
  return {reinterpret_cast<int32_t*>(floats),
          floats + room,
          floats + 2 * room,
          floats + 3 * room,
          floats + 4 * room,
          floats + 5 * room,
          0};
}

// Collects all tokens whose logit is at least `lowest`, and their weights if `row_weights` are given.
static inline void collect(const float* row, int64_t size, float lowest, Candidates& candidates,
                           const float* row_weights = nullptr) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; i += VF::kLanes) {
    const VF logits = load_clean(row, i, size);
    const uint32_t found = mask_less_equal(broadcast(lowest), logits) & lanes_inside(i, size);
    if (found == 0) continue;
    store_set_numbers(candidates.ids + count, static_cast<int32_t>(i), found);
    store_set(candidates.logits + count, logits, found);
    if (row_weights) store_set(candidates.weights + count, load_partial(row_weights + i, lanes_left(size - i)), found);
    count += __builtin_popcount(found);
  }
  candidates.size = count;
}

// Keeps the `count` candidates with the highest logits, ties to the lowest ids; their weights are not used.
void keep_highest(Candidates& candidates, int64_t count);

// Sets all weights to zero but those of the fewest candidates of highest logit whose weights sum to at least `target`,
// ties to the lowest ids.
void keep_heaviest(Candidates& candidates, double target);

// Collects at least the `count` highest logits of a row (count <= size) whose largest logit is known, then keeps just
// these.
void collect_highest(const float* row, int64_t size, float largest, int64_t count, Candidates& candidates);

}  // namespace octavo::OCTAVO_ISA
