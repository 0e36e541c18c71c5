// Selection of the highest logits without sorting: a binary search for the lowest logit that stays.
//
// The search runs over the bits of the floats, mapped so that integers order as the floats do: at most 32 passes over
// the candidates, whatever their values.
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

struct CountFrom {
  double operator()(const Candidates& c, float lowest) const {
    int64_t count = 0;
    for (int64_t i = 0; i < c.size; i += kLanes) {
      const VF logits = load_partial(c.logits + i, lanes_left(c.size - i));
      count += __builtin_popcount(mask_less_equal(broadcast(lowest), logits) & lanes_inside(i, c.size));
    }
    return static_cast<double>(count);
  }
};

struct WeightFrom {
  double operator()(const Candidates& c, float lowest) const {
    DoubleSum sum;
    for (int64_t i = 0; i < c.size; i += kLanes) {
      const int n = lanes_left(c.size - i);
      sum.add(select_less(load_partial(c.logits + i, n), broadcast(lowest), zero(), load_partial(c.weights + i, n)));
    }
    return sum.total();
  }
};

// The highest logit such that the candidates from it up measure at least `target`.
template <class Measure>
float find_cut(const Candidates& candidates, double target, Measure measure) {
  int64_t low = order_of(-INFINITY), high = order_of(row_max(candidates.logits, candidates.size));
  while (low < high) {
    const int64_t middle = high - (high - low) / 2;
    if (measure(candidates, value_at(middle)) >= target) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return value_at(low);
}

// Keeps what lies above the cut, and the first num_ties of what lies on it.
void keep_from(Candidates& c, float cut, int64_t num_ties) {
  int64_t kept = 0;
  for (int64_t i = 0; i < c.size; ++i) {
    const bool on_cut = c.logits[i] == cut;
    if (c.logits[i] < cut || (on_cut && num_ties-- <= 0)) continue;
    c.ids[kept] = c.ids[i];
    c.logits[kept] = c.logits[i];
    c.weights[kept++] = c.weights[i];
  }
  c.size = kept;
}

template <class Measure>
double measure_above(const Candidates& candidates, float cut, Measure measure) {
  return measure(candidates, std::nextafter(cut, INFINITY));
}

}  // namespace

void keep_highest(Candidates& candidates, int64_t count) {
  if (count >= candidates.size) return;
  const float cut = find_cut(candidates, static_cast<double>(count), CountFrom());
  const double above = measure_above(candidates, cut, CountFrom());
  keep_from(candidates, cut, count - static_cast<int64_t>(above));
}

void keep_heaviest(Candidates& candidates, double target) {
  const float cut = find_cut(candidates, target, WeightFrom());
  const double above = measure_above(candidates, cut, WeightFrom());
  int64_t first = 0;
  while (first < candidates.size && candidates.logits[first] != cut) ++first;
  const double weight = first < candidates.size ? candidates.weights[first] : 0.0;
  // Weightless ties are not needed; a target that rounding puts out of reach keeps all.
  const double num_ties = weight > 0 ? std::ceil((target - above) / weight) : 0.0;
  keep_from(candidates, cut, num_ties < 1 ? 1 : static_cast<int64_t>(num_ties));
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
