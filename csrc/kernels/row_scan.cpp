// Selection of the highest logits without sorting.
//
// The range that must hold the lowest kept logit is halved, and what lies outside it leaves, until one value is left:
// at most 40 passes, whatever the logits. All but the first halvings are over the bits of the floats, mapped so that
// integers order as the floats do.
#include "kernels/row_scan.h"

#include <cstring>

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kLanes = VF::kLanes;

int64_t order_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits >= 0 ? bits : static_cast<int64_t>(INT32_MIN) - bits;
}

float value_at(int64_t order) {
  const int32_t bits = static_cast<int32_t>(order >= 0 ? order : static_cast<int64_t>(INT32_MIN) - order);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The lowest and the highest of some logits, at least one.
struct Bounds {
  float lowest, highest;
};

Bounds bounds_of(const float* logits, int64_t size) {
  VF lowest[2], highest[2];
  lowest[0] = lowest[1] = highest[0] = highest[1] = broadcast(logits[0]);
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    for (int chain = 0; chain < 2; ++chain) {
      const VF lanes = load(logits + i + chain * kLanes);
      lowest[chain] = min(lanes, lowest[chain]);
      highest[chain] = max(lanes, highest[chain]);
    }
  }
  Bounds bounds{0.0f - reduce_max(zero() - min(lowest[0], lowest[1])), reduce_max(max(highest[0], highest[1]))};
  for (; i < size; ++i) {
    bounds.lowest = logits[i] < bounds.lowest ? logits[i] : bounds.lowest;
    bounds.highest = logits[i] > bounds.highest ? logits[i] : bounds.highest;
  }
  return bounds;
}

// A value above the lowest and at most the highest of a range that is not empty: both sides of it lose something. The
// first ones halve the range, which evenly spread logits need; later ones halve its bit patterns, which ends for any.
float pivot_of(const Bounds& range, int pass) {
  const float middle = 0.5f * range.lowest + 0.5f * range.highest;
  if (pass < 8 && middle > range.lowest) return middle;
  const int64_t low = order_of(range.lowest), high = order_of(range.highest);
  return value_at(high - (high - low) / 2);
}

// The logits and weights among which the cut is sought.
struct Rest {
  const float* logits;
  const float* weights;
  int64_t size;

  double weight_from(float lowest) const {
    DoubleSum sum;
    for (int64_t i = 0; i < size; i += kLanes) {
      const int n = lanes_left(size - i);
      sum.add(select_less(load_partial(logits + i, n), broadcast(lowest), zero(), load_partial(weights + i, n)));
    }
    return sum.total();
  }

  // Keeps the logits from `pivot` up, or those below it, in other arrays or in these.
  void keep_side(float pivot, bool from_pivot_up, float* kept_logits, float* kept_weights) {
    const uint32_t others = from_pivot_up ? 0 : ~uint32_t{0};
    int64_t kept = 0;
    for (int64_t i = 0; i < size; i += kLanes) {
      const int n = lanes_left(size - i);
      const VF some_logits = load_partial(logits + i, n), some_weights = load_partial(weights + i, n);
      const uint32_t side = (mask_less_equal(broadcast(pivot), some_logits) ^ others) & lanes_inside(i, size);
      store_set(kept_logits + kept, some_logits, side);
      store_set(kept_weights + kept, some_weights, side);
      kept += __builtin_popcount(side);
    }
    *this = {kept_logits, kept_weights, kept};
  }
};

struct Cut {
  float logit;
  double above;  // the weight of everything above that logit
};

// Finds the highest logit such that the weights from it up sum to at least `target`; the lowest one if none do.
Cut find_cut(const Candidates& candidates, double target) {
  Rest rest{candidates.logits, candidates.weights, candidates.size};
  double above = 0;
  for (int pass = 0;; ++pass) {
    const Bounds range = bounds_of(rest.logits, rest.size);
    if (range.lowest == range.highest) return {range.lowest, above};
    const float pivot = pivot_of(range, pass);
    const double sum = above + rest.weight_from(pivot);
    if (sum < target) above = sum;
    rest.keep_side(pivot, sum >= target, candidates.rest_logits, candidates.rest_weights);
  }
}

// Keeps what lies above the cut, and the first num_ties of what lies on it; weights are not used.
void keep_from(Candidates& c, float cut, int64_t num_ties) {
  int64_t kept = 0;
  for (int64_t i = 0; i < c.size; ++i) {
    const float logit = c.logits[i];
    c.ids[kept] = c.ids[i];
    c.logits[kept] = logit;
    kept += (logit > cut) | ((logit == cut) & (num_ties > 0));
    num_ties -= logit == cut;
  }
  c.size = kept;
}

// Does the same to the weights alone, where what is not kept gets none.
void keep_weights_from(Candidates& c, float cut, int64_t num_ties) {
  for (int64_t i = 0; i < c.size; i += kLanes) {
    const int n = lanes_left(c.size - i);
    const VF logits = load_partial(c.logits + i, n);
    store_partial(c.weights + i, select_less(logits, broadcast(cut), zero(), load_partial(c.weights + i, n)), n);
    const uint32_t from_cut = mask_less_equal(broadcast(cut), logits) & lanes_inside(i, c.size);
    uint32_t ties = from_cut & ~mask_less(broadcast(cut), logits);
    for (; ties != 0; ties &= ties - 1) {
      if (num_ties-- <= 0) c.weights[i + __builtin_ctz(ties)] = 0.0f;
    }
  }
}

}  // namespace

void keep_highest(Candidates& candidates, int64_t count) {
  if (count >= candidates.size) return;
  for (int64_t i = 0; i < candidates.size; ++i) candidates.weights[i] = 1.0f;
  const Cut cut = find_cut(candidates, static_cast<double>(count));
  keep_from(candidates, cut.logit, count - static_cast<int64_t>(cut.above));
}

void keep_heaviest(Candidates& candidates, double target) {
  const Cut cut = find_cut(candidates, target);
  int64_t tie = 0;
  while (candidates.logits[tie] != cut.logit) ++tie;
  const double weight = candidates.weights[tie];
  const double num_ties = weight > 0 ? std::ceil((target - cut.above) / weight) : 0.0;
  keep_weights_from(candidates, cut.logit, num_ties < 1 ? 1 : static_cast<int64_t>(num_ties));
}

void collect_highest(const float* row, int64_t size, float largest, int64_t count, Candidates& candidates) {
  // Nearly always one of the first tries is enough; each is one pass over the row, and the last takes every token.
  for (const float gap : {4.0f, 8.0f, 16.0f, INFINITY}) {
    collect(row, size, gap == INFINITY ? -INFINITY : largest - gap, candidates);  // the largest may be infinite too
    if (candidates.size >= count) break;
  }
  keep_highest(candidates, count);
}

}  // namespace octavo::OCTAVO_ISA
