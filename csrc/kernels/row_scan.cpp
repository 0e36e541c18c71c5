// Selection of the highest logits without sorting.
//
// The range that must hold the lowest kept logit is halved, and what lies outside it leaves, until one value is left:
// at most 32 passes, whatever the logits. The halving is over the bits of the floats, mapped so that integers order as
// the floats do.
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

float row_min(const float* row, int64_t size) {
  VF smallest = broadcast(row[0]);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) smallest = min(load(row + i), smallest);
  float result = 0.0f - reduce_max(zero() - smallest);
  for (; i < size; ++i) result = row[i] < result ? row[i] : result;
  return result;
}

// The logits and weights among which the cut is sought.
struct Rest {
  float* logits;
  float* weights;
  int64_t size;

  double weight_from(float lowest) const {
    DoubleSum sum;
    for (int64_t i = 0; i < size; i += kLanes) {
      const int n = lanes_left(size - i);
      sum.add(select_less(load_partial(logits + i, n), broadcast(lowest), zero(), load_partial(weights + i, n)));
    }
    return sum.total();
  }

  // Keeps the logits from `pivot` up, or those below it. Written without branches: they would be mispredicted.
  void keep_side(float pivot, bool from_pivot_up) {
    int64_t kept = 0;
    for (int64_t i = 0; i < size; ++i) {
      logits[kept] = logits[i];
      weights[kept] = weights[i];
      kept += (logits[i] >= pivot) == from_pivot_up;
    }
    size = kept;
  }
};

struct Cut {
  float logit;
  double above;  // the weight of everything above that logit
};

// Finds the highest logit such that the weights from it up sum to at least `target`; the lowest one if none do.
Cut find_cut(const Candidates& candidates, double target) {
  Rest rest{candidates.rest_logits, candidates.rest_weights, candidates.size};
  std::memcpy(rest.logits, candidates.logits, candidates.size * sizeof(float));
  std::memcpy(rest.weights, candidates.weights, candidates.size * sizeof(float));
  double above = 0;
  while (true) {
    const float lowest = row_min(rest.logits, rest.size), highest = row_max(rest.logits, rest.size);
    if (lowest == highest) return {lowest, above};
    const int64_t low = order_of(lowest), high = order_of(highest);
    const float pivot = value_at(high - (high - low) / 2);  // low < pivot <= high: both sides lose something
    const double sum = above + rest.weight_from(pivot);
    if (sum < target) above = sum;
    rest.keep_side(pivot, sum >= target);
  }
}

// Keeps what lies above the cut, and the first num_ties of what lies on it.
void keep_from(Candidates& c, float cut, int64_t num_ties) {
  int64_t kept = 0;
  for (int64_t i = 0; i < c.size; ++i) {
    const float logit = c.logits[i];
    c.ids[kept] = c.ids[i];
    c.logits[kept] = logit;
    c.weights[kept] = c.weights[i];
    kept += (logit > cut) | ((logit == cut) & (num_ties > 0));
    num_ties -= logit == cut;
  }
  c.size = kept;
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
  keep_from(candidates, cut.logit, num_ties < 1 ? 1 : static_cast<int64_t>(num_ties));
}

void collect_highest(const float* row, int64_t size, float largest, int64_t count, Candidates& candidates) {
  // Nearly always one of the first tries is enough; each is one pass over the row, and the last takes every token.
  for (const float gap : {4.0f, 8.0f, 16.0f, INFINITY}) {
    collect(row, size, largest - gap, candidates);
    if (candidates.size >= count) break;
  }
  keep_highest(candidates, count);
}

}  // namespace octavo::OCTAVO_ISA
