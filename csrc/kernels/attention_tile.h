// One tile of tokens against some rows, a row being one query of one head: scores, online soft-max, weighted sum of V.
//
// Every number of a row is computed by the same operations in the same order however many rows stand beside it,
// whichever element type the granules are read in, and whichever tokens outside the row's own range are looked at:
//   score    one chain of fma over head_dim, from 0
//   maximum  exact in any order
//   sum      lane by lane over the tile's tokens; a token that the row does not see adds 0
//   output   one chain of fma over the tokens in order; a token that the row does not see has weight 0
// Elements of V that no row of a block of rows sees are never multiplied: 0 times NaN would be NaN.
#pragma once

#include "kernels/kv_elements.h"
#include "kernels/vector_math.h"

namespace octavo::OCTAVO_ISA {

// Tokens per tile: long enough to spread the cost of a new maximum, short enough that the scores of all rows of
// an item, 24 KiB, stay in the first cache.
constexpr int kTileTokens = 64;
constexpr int kTileGranules = kTileTokens / kGranuleTokens;

// Rows whose accumulators fit in the registers beside two vectors of B: two vectors for each, 12 of 16 registers.
constexpr int kBlockRows = 6;
// Accumulators of a block with more than two vectors: 8 of 16 registers (with 12 the compiler spills), 24 of 32.
constexpr int kMaxAccumulators = VF::kLanes == 8 ? 8 : 24;

// Below every score, and finite: differences of maxima stay numbers.
constexpr float kLowest = -3.0e38f;

// The running soft-max of some rows over one segment of tokens. Arrays have one entry, or one stretch, per row.
struct Rows {
  int64_t num_rows;
  int64_t head_dim;
  const float* queries;  // [num_rows, head_dim], scaled
  float* scores;         // [num_rows, kTileTokens]
  float* output;         // [num_rows, head_dim], not yet divided by the sum
  float* maximum;        // [num_rows]
  float* sum;            // [num_rows, VF::kLanes]
  int64_t* begin;        // [num_rows]: first position that the row sees; neither falls from row to row
  int64_t* end;          // [num_rows]: one past the last
  float cap;             // 0, or: scores are cap * tanh(dot)
};

// The granules of one tile that some row sees; the others are null.
struct Tile {
  int64_t start;  // position of the tile's first token
  Granule granules[kTileGranules];
  // Granules to fetch meanwhile: kTileGranules beside the scores, as many beside the weighted sum.
  const std::byte* ahead[2 * kTileGranules];
};

struct RowRange {
  int64_t begin;
  int64_t end;
};

// acc[r][j] += a[r] * B[j] for one k; `load_b(j)` gives vector j of row k of B.
template <int kRows, int kVectors, class Load>
__attribute__((always_inline)) static inline void multiply_step(VF (&acc)[kRows][kVectors], const float* a,
                                                                int64_t a_stride, const Load& load_b) {
  if constexpr (kVectors <= 2) {
    VF b[kVectors];
    for (int j = 0; j < kVectors; ++j) b[j] = load_b(j);
    for (int r = 0; r < kRows; ++r) {
      const VF x = broadcast(a[r * a_stride]);
      for (int j = 0; j < kVectors; ++j) acc[r][j] = fma(x, b[j], acc[r][j]);
    }
  } else {
    VF x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = broadcast(a[r * a_stride]);
    for (int j = 0; j < kVectors; ++j) {
      const VF b = load_b(j);
      for (int r = 0; r < kRows; ++r) acc[r][j] = fma(x[r], b, acc[r][j]);
    }
  }
}

// scores[r][granule i] = dot of query r with each of the granule's keys, for kGranules granules side by side.
template <class Elements, int kRows, int kGranules>
static void score_granules(const Rows& rows, int64_t row, const Tile& tile, int granule) {
  constexpr int kVectors = kGranules * kGranuleVectors;
  const std::byte* keys[kGranules];
  const std::byte* ahead[kGranules];
  for (int i = 0; i < kGranules; ++i) {
    keys[i] = tile.granules[granule + i].k;
    ahead[i] = tile.ahead[granule + i];
  }
  VF acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) acc[r][j] = zero();
  }
  const float* queries = rows.queries + row * rows.head_dim;
  for (int64_t k = 0; k < rows.head_dim; k += 2) {
    const auto column = [](int j) { return j % kGranuleVectors * VF::kLanes; };
    for (int i = 0; i < kGranules; ++i) Elements::fetch_rows(ahead[i], k);
    multiply_step(acc, queries + k, rows.head_dim, [&](int j) __attribute__((always_inline)) {
      return Elements::template load<0>(keys[j / kGranuleVectors], kGranuleTokens, k, column(j));
    });
    multiply_step(acc, queries + k + 1, rows.head_dim, [&](int j) __attribute__((always_inline)) {
      return Elements::template load<1>(keys[j / kGranuleVectors], kGranuleTokens, k, column(j));
    });
  }
  float* scores = rows.scores + row * kTileTokens + granule * kGranuleTokens;
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(scores + r * kTileTokens + j * VF::kLanes, acc[r][j]);
  }
}

// The scores of tokens outside [begin, end), counted from the vector's first token, become `other`.
static inline VF keep_visible(VF x, int64_t begin, int64_t end, VF other) {
  alignas(64) static constexpr float kIndices[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const VF index = load(kIndices);
  const VF after_begin = select_less(index, broadcast(static_cast<float>(begin)), other, x);
  return select_less(index, broadcast(static_cast<float>(end)), after_begin, other);
}

// The part of a tile that is looked at for a row: token offsets [begin, end), whole granules, of which the row sees
// [visible_begin, visible_end).
struct Extent {
  int begin;
  int end;
  int64_t visible_begin;
  int64_t visible_end;

  bool all_visible() const { return visible_begin <= begin && visible_end >= end; }
};

// Scores times the scales of K, through the cap, and minus infinity where the row does not see the token.
static void adjust_scores(float* scores, const Tile& tile, const Extent& extent, float cap) {
  for (int token = extent.begin; token < extent.end; token += VF::kLanes) {
    const float* scales = tile.granules[token / kGranuleTokens].k_scales;
    VF score = load(scores + token);
    if (scales != nullptr) score = score * load(scales + token % kGranuleTokens);
    if (cap > 0.0f) score = broadcast(cap) * tanh(score);
    const VF hidden = broadcast(-__builtin_inff());
    store(scores + token, keep_visible(score, extent.visible_begin - token, extent.visible_end - token, hidden));
  }
}

// Weights times the scales of V. The scale of a token that the row does not see may be anything.
static void scale_weights(float* weights, const Tile& tile, const Extent& extent) {
  for (int token = extent.begin; token < extent.end; token += VF::kLanes) {
    const float* scales = tile.granules[token / kGranuleTokens].v_scales;
    const VF weight = load(weights + token) * load(scales + token % kGranuleTokens);
    store(weights + token, keep_visible(weight, extent.visible_begin - token, extent.visible_end - token, zero()));
  }
}

// Turns a row's scores into weights exp2(score - maximum) and updates its maximum and sum. Returns the factor by which
// the row's output so far must shrink.
static float soft_max_row(const Rows& rows, int64_t row, const Tile& tile, int first_granule, int last_granule) {
  float* scores = rows.scores + row * kTileTokens;
  const Extent extent = {first_granule * kGranuleTokens, last_granule * kGranuleTokens, rows.begin[row] - tile.start,
                         rows.end[row] - tile.start};
  const bool scaled = tile.granules[first_granule].k_scales != nullptr;
  if (scaled || rows.cap > 0.0f || !extent.all_visible()) adjust_scores(scores, tile, extent, rows.cap);
  VF largest = broadcast(rows.maximum[row]);
  for (int token = extent.begin; token < extent.end; token += VF::kLanes) largest = max(largest, load(scores + token));
  const float old_maximum = rows.maximum[row];
  const float maximum = reduce_max(largest);
  const VF shift = broadcast(maximum);
  VF sum = zero();
  for (int token = extent.begin; token < extent.end; token += VF::kLanes) {
    const VF weight = exp2(load(scores + token) - shift);
    sum = sum + weight;
    store(scores + token, weight);
  }
  if (scaled) scale_weights(scores, tile, extent);
  float* row_sum = rows.sum + row * VF::kLanes;
  if (maximum == old_maximum) {
    store(row_sum, load(row_sum) + sum);
    return 1.0f;
  }
  rows.maximum[row] = maximum;
  alignas(64) float factors[VF::kLanes];
  const VF factor = exp2(broadcast(old_maximum) - shift);
  store(factors, factor);
  store(row_sum, fma(load(row_sum), factor, sum));
  return factors[0];
}

// The weighted sum fetches panel by panel too: sixteen rows of sixteen elements, wherever they lie in a matrix.
struct AheadPanel {
  const std::byte* granule;
  int64_t row;
};

// The panel that is fetched beside panel `number` of a pass over the tile's granules at `column`.
static inline AheadPanel ahead_panel(const Tile& tile, int64_t head_dim, int64_t column, int64_t number) {
  const auto panels_in_granule = static_cast<uint32_t>(head_dim / kGranuleTokens);
  const auto panel = static_cast<uint32_t>(column / kGranuleTokens * kTileGranules + number);
  return {tile.ahead[kTileGranules + panel / panels_in_granule], panel % panels_in_granule * kGranuleTokens};
}

// output[r] = shrink[r] * output[r] + sum over tokens in begin .. end of weight[r][token] * V[token], for kPanels * 16
// columns.
template <class Elements, int kRows, int kPanels>
static void weigh_values(const Rows& rows, int64_t row, const float* shrink, const Tile& tile, int64_t begin,
                         int64_t end, int64_t column) {
  constexpr int kVectors = kPanels * kGranuleVectors;
  const int64_t head_dim = rows.head_dim;
  float* output = rows.output + row * head_dim + column;
  VF acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) acc[r][j] = load(output + r * head_dim + j * VF::kLanes) * broadcast(shrink[r]);
  }
  const float* weights = rows.scores + row * kTileTokens;
  for (int64_t token = begin; token < end;) {
    const std::byte* values = tile.granules[token / kGranuleTokens].v;
    const AheadPanel ahead = ahead_panel(tile, head_dim, column, token / kGranuleTokens * kPanels);
    const int64_t granule_end = (token / kGranuleTokens + 1) * kGranuleTokens;
    const int64_t stop = end < granule_end ? end : granule_end;
    const float* a = weights + token / kGranuleTokens * kGranuleTokens;
    int64_t k = token % kGranuleTokens;
    const int64_t k_stop = k + stop - token;
    const auto first = [&](int64_t row_pair) __attribute__((always_inline)) {
      multiply_step(acc, a + row_pair, kTileTokens, [&](int j) __attribute__((always_inline)) {
        return Elements::template load<0>(values, head_dim, row_pair, column + j * VF::kLanes);
      });
    };
    const auto second = [&](int64_t row_pair) __attribute__((always_inline)) {
      multiply_step(acc, a + row_pair + 1, kTileTokens, [&](int j) __attribute__((always_inline)) {
        return Elements::template load<1>(values, head_dim, row_pair, column + j * VF::kLanes);
      });
    };
    if (k % 2 == 1) {
      second(k - 1);
      ++k;
    }
    for (; k + 2 <= k_stop; k += 2) {
      for (int i = 0; i < kPanels; ++i) Elements::fetch_rows(ahead.granule, ahead.row + kPanels * k + 2 * i);
      first(k);
      second(k);
    }
    if (k < k_stop) first(k);
    token = stop;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(output + r * head_dim + j * VF::kLanes, acc[r][j]);
  }
}

// Granules (or panels of 16 columns) taken side by side with kRows rows: as many as the registers hold, at most four.
constexpr int panels_beside(int num_rows) {
  const int fitting = kMaxAccumulators / (num_rows * kGranuleVectors);
  return fitting >= 4 ? 4 : fitting >= 2 ? 2 : 1;
}

template <class Elements, int kRows>
static void attend_block(const Rows& rows, int64_t row, const Tile& tile) {
  constexpr int kPanels = panels_beside(kRows);
  const int64_t seen_begin = rows.begin[row] - tile.start;
  const int64_t seen_end = rows.end[row + kRows - 1] - tile.start;
  const int64_t begin = seen_begin > 0 ? seen_begin : 0;
  const int64_t end = seen_end < kTileTokens ? seen_end : kTileTokens;
  if (begin >= end) return;
  const int first = static_cast<int>(begin / kGranuleTokens);
  const int last = static_cast<int>((end + kGranuleTokens - 1) / kGranuleTokens);
  int granule = first;
  for (; granule + kPanels <= last; granule += kPanels)
    score_granules<Elements, kRows, kPanels>(rows, row, tile, granule);
  for (; granule < last; ++granule) score_granules<Elements, kRows, 1>(rows, row, tile, granule);
  float shrink[kRows];
  for (int r = 0; r < kRows; ++r) shrink[r] = soft_max_row(rows, row + r, tile, first, last);
  constexpr int64_t kColumns = kPanels * kGranuleTokens;
  int64_t column = 0;
  for (; column + kColumns <= rows.head_dim; column += kColumns) {
    weigh_values<Elements, kRows, kPanels>(rows, row, shrink, tile, begin, end, column);
  }
  for (; column < rows.head_dim; column += kGranuleTokens) {
    weigh_values<Elements, kRows, 1>(rows, row, shrink, tile, begin, end, column);
  }
}

// Rows of one KV head against one tile, in blocks of nearly equal size.
template <class Elements>
static void attend_tile(const Rows& rows, RowRange range, const Tile& tile) {
  const int64_t num_rows = range.end - range.begin;
  const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t row = range.begin + num_rows * block / num_blocks;
    switch (range.begin + num_rows * (block + 1) / num_blocks - row) {
      case 1:
        attend_block<Elements, 1>(rows, row, tile);
        break;
      case 2:
        attend_block<Elements, 2>(rows, row, tile);
        break;
      case 3:
        attend_block<Elements, 3>(rows, row, tile);
        break;
      case 4:
        attend_block<Elements, 4>(rows, row, tile);
        break;
      case 5:
        attend_block<Elements, 5>(rows, row, tile);
        break;
      case 6:
        attend_block<Elements, 6>(rows, row, tile);
        break;
    }
  }
}

// Replaces granule i of the tile by its floats, 16 * head_dim each for k and v, in the order of ExpandedElements. (K is
// a single panel.)
template <class Elements>
static void expand_granule(Tile& tile, int i, int64_t head_dim, float* k, float* v) {
  Granule& granule = tile.granules[i];
  for (int64_t d = 0; d < head_dim; d += 2) {
    Elements::fetch_rows(tile.ahead[i], d);
    for (int column = 0; column < kGranuleTokens; column += VF::kLanes) {
      store(k + d * kGranuleTokens + column, Elements::template load<0>(granule.k, kGranuleTokens, d, column));
      store(k + (d + 1) * kGranuleTokens + column, Elements::template load<1>(granule.k, kGranuleTokens, d, column));
    }
  }
  for (int64_t token = 0; token < kGranuleTokens; token += 2) {
    for (int64_t row = 0; row < head_dim / 8; row += 2) {
      Elements::fetch_rows(tile.ahead[kTileGranules + i], token * head_dim / kGranuleTokens + row);
    }
    for (int64_t column = 0; column < head_dim; column += VF::kLanes) {
      float* to = v + ExpandedElements::offset(kGranuleTokens, token, column);
      store(to, Elements::template load<0>(granule.v, head_dim, token, column));
      store(to + kGranuleTokens, Elements::template load<1>(granule.v, head_dim, token, column));
    }
  }
  granule.k = reinterpret_cast<std::byte*>(k);
  granule.v = reinterpret_cast<std::byte*>(v);
}

}  // namespace octavo::OCTAVO_ISA
