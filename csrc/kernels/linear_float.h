// Products with fp32 and bf16 panels. Every output is one chain of fused multiply-adds along the inputs, in order.
#pragma once

#include "kernels/linear_rows.h"

namespace octavo::OCTAVO_ISA {

// Inputs 2 * pair and 2 * pair + 1 of a panel lie together: as two rows of floats, or as pairs of bf16.
struct Fp32Weights {
  static constexpr int kTileRows = kFloatTileRows;
  static constexpr int64_t kPairBytes = 2 * kPanelWidth * sizeof(float);

  template <int kOdd>
  static VF load(const std::byte* pair, int vector) {
    return octavo::OCTAVO_ISA::load(reinterpret_cast<const float*>(pair) + kOdd * kPanelWidth + vector * VF::kLanes);
  }
};

struct Bf16Weights {
  static constexpr int kTileRows = kBf16TileRows;
  static constexpr int64_t kPairBytes = kPanelWidth * sizeof(uint32_t);

  template <int kOdd>
  static VF load(const std::byte* pair, int vector) {
    const VI bits = load_bytes(pair + vector * VF::kLanes * sizeof(uint32_t));
    return kOdd ? odd_bf16(bits) : even_bf16(bits);
  }
};

// Pairs of inputs between two looks ahead: their loop is unrolled, for a tile shares the processor's front with all
// else.
constexpr int64_t kPairsPerStep = 4;

// A block of rows times kPanels panels that lie panel_bytes apart.
template <class Weights, int kPanels = 1>
struct FloatTile {
  static constexpr int kVectors = kPanels * kPanelVectors;

  const float* x;
  int64_t x_stride;
  const std::byte* weights;
  int64_t panel_bytes;
  int64_t num_pairs;
  float* sums;  // [num_rows, kPanels * kPanelWidth]
  int64_t num_rows;
  Lookahead next;

  template <int kRows>
  void run(int64_t first_row) const {
    const Lookahead own = share_of_lookahead(next, first_row, kRows, num_rows);
    Prefetcher<kPanels> ahead(own, num_pairs / kPairsPerStep, panel_bytes);
    const float* rows = x + first_row * x_stride;
    float* tile_sums = sums + first_row * kVectors * VF::kLanes;
    VF sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load(tile_sums + (r * kVectors + v) * VF::kLanes);
    }
    const std::byte* pair = weights;
    for (int64_t i = 0; i < num_pairs; i += kPairsPerStep) {
      ahead.step();
#pragma GCC unroll 8
      for (int p = 0; p < kPairsPerStep; ++p, pair += Weights::kPairBytes) {
        add<kRows, 0>(rows + 2 * (i + p), pair, sum);
        add<kRows, 1>(rows + 2 * (i + p) + 1, pair, sum);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store(tile_sums + (r * kVectors + v) * VF::kLanes, sum[r][v]);
    }
  }

  template <int kRows, int kOdd>
  void add(const float* inputs, const std::byte* pair, VF (&sum)[kRows][kVectors]) const {
    VF input[kRows];
    for (int r = 0; r < kRows; ++r) input[r] = broadcast(inputs[r * x_stride]);
    for (int v = 0; v < kVectors; ++v) {
      const VF weight = Weights::template load<kOdd>(pair + v / kPanelVectors * panel_bytes, v % kPanelVectors);
      for (int r = 0; r < kRows; ++r) sum[r][v] = fma(input[r], weight, sum[r][v]);
    }
  }
};

struct FloatRows : PlainPanel {
  static constexpr int kRowPanels = 1;

  static int64_t row_bytes(int64_t num_groups) { return num_groups * kGroupSize * sizeof(float); }

  static void prepare(const float* x, int64_t num_inputs, int64_t num_groups, std::byte* row) {
    float* out = reinterpret_cast<float*>(row);
    for (int64_t i = 0; i < num_inputs; ++i) out[i] = x[i];
    for (int64_t i = num_inputs; i < num_groups * kGroupSize; ++i) out[i] = 0;
  }
};

// Inputs are taken in chunks, so that a chunk of a panel stays in the first-level cache while all rows pass: 96 inputs
// of 32 floats are 12 KiB, which fit even where two threads share a core.
constexpr int64_t kFloatChunkGroups = 3;
constexpr int64_t kFloatChunkBytes = kFloatChunkGroups * kGroupSize * kPanelWidth * sizeof(float);

// Not inlined, so that panels of fp32 and of expanded bf16 share one loop: among other code the compiler runs short of
// registers and loads weights up to three times.
template <class Weights>
__attribute__((noinline)) void multiply_chunk(const PreparedRows& rows, const std::byte* weights, int64_t first_group,
                                              int64_t num_groups, float* sums, const Lookahead& next) {
  const FloatTile<Weights> tile{reinterpret_cast<const float*>(rows.data) + first_group * kGroupSize,
                                rows.stride / static_cast<int64_t>(sizeof(float)),
                                weights,
                                0,
                                num_groups * kGroupSize / 2,
                                sums,
                                rows.count,
                                next};
  for_each_row_block<Weights::kTileRows>(rows.count, tile);
}

struct Fp32Panel : FloatRows {
  static void multiply(const PreparedRows& rows, const std::byte* panel, int64_t num_groups, float* sums, std::byte*) {
    for (int64_t group = 0; group < num_groups; group += kFloatChunkGroups) {
      const int64_t chunk = num_groups - group < kFloatChunkGroups ? num_groups - group : kFloatChunkGroups;
      const std::byte* weights = panel + group * kGroupSize / 2 * Fp32Weights::kPairBytes;
      const int64_t chunk_bytes = chunk * kGroupSize / 2 * Fp32Weights::kPairBytes;
      const Lookahead next = lookahead_from(weights, chunk_bytes, rows.count <= kFloatTileRows);
      multiply_chunk<Fp32Weights>(rows, weights, group, chunk, sums, next);
    }
  }
};

struct Bf16Panel : FloatRows {
  static constexpr int kRowPanels = kFloatRowPanels;
  // From this many rows on, expanding a chunk to floats once is faster than expanding it for every block of rows.
  static constexpr int64_t kMinRowsToExpand = 9;
  static constexpr int64_t kGroupBytes = kGroupSize / 2 * Bf16Weights::kPairBytes;

  static void multiply(const PreparedRows& rows, const std::byte* panel, int64_t num_groups, float* sums,
                       std::byte* chunk_floats) {
    if (rows.count < kMinRowsToExpand) {
      const int64_t num_bytes = num_groups * kGroupBytes;
      const Lookahead next = lookahead_from(panel, num_bytes, rows.count <= kBf16TileRows);
      return multiply_chunk<Bf16Weights>(rows, panel, 0, num_groups, sums, next);
    }
    for (int64_t group = 0; group < num_groups; group += kFloatChunkGroups) {
      const int64_t chunk = num_groups - group < kFloatChunkGroups ? num_groups - group : kFloatChunkGroups;
      const std::byte* weights = panel + group * kGroupBytes;
      expand(weights, chunk * kGroupSize / 2, chunk_floats);
      const Lookahead next = lookahead_from(weights, chunk * kGroupBytes, false);
      multiply_chunk<Fp32Weights>(rows, chunk_floats, group, chunk, sums, next);
    }
  }

  // One row times kRowPanels panels.
  static void multiply_row(const PreparedRows& rows, const std::byte* panels, int64_t panel_bytes, int64_t num_groups,
                           float* sums) {
    const FloatTile<Bf16Weights, kRowPanels> tile{
        reinterpret_cast<const float*>(rows.data), 0, panels, panel_bytes, num_groups * kGroupSize / 2, sums, 1,
        lookahead_from(panels, panel_bytes, true)};
    tile.template run<1>(0);
  }

  static void expand(const std::byte* pairs, int64_t num_pairs, std::byte* floats) {
    float* out = reinterpret_cast<float*>(floats);
    for (int64_t i = 0; i < num_pairs; ++i, pairs += Bf16Weights::kPairBytes, out += 2 * kPanelWidth) {
      for (int v = 0; v < kPanelVectors; ++v) {
        store(out + v * VF::kLanes, Bf16Weights::load<0>(pairs, v));
        store(out + kPanelWidth + v * VF::kLanes, Bf16Weights::load<1>(pairs, v));
      }
    }
  }
};

#if defined(OCTAVO_BF16_DOT)

// Where the processor multiplies pairs of bf16, the inputs are rounded to bf16 too.
struct Bf16DotTile {
  const std::byte* x;
  int64_t x_stride;  // bytes
  const std::byte* weights;
  int64_t num_pairs;
  float* sums;
  int64_t num_rows;
  Lookahead next;

  template <int kRows>
  void run(int64_t first_row) const {
    Prefetcher<> ahead(share_of_lookahead(next, first_row, kRows, num_rows), num_pairs / kPairsPerStep, 0);
    const std::byte* rows = x + first_row * x_stride;
    float* tile_sums = sums + first_row * kPanelWidth;
    VF sum[kRows][kPanelVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = load(tile_sums + r * kPanelWidth + v * VF::kLanes);
    }
    const std::byte* pair = weights;
    for (int64_t i = 0; i < num_pairs; i += kPairsPerStep) {
      ahead.step();
#pragma GCC unroll 8
      for (int p = 0; p < kPairsPerStep; ++p, pair += Bf16Weights::kPairBytes)
        add(rows + (i + p) * sizeof(int32_t), pair, sum);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kPanelVectors; ++v) store(tile_sums + r * kPanelWidth + v * VF::kLanes, sum[r][v]);
    }
  }

  template <int kRows>
  void add(const std::byte* inputs, const std::byte* pair, VF (&sum)[kRows][kPanelVectors]) const {
    VI weight[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) weight[v] = load_bytes(pair + v * VF::kLanes * sizeof(uint32_t));
    for (int r = 0; r < kRows; ++r) {
      const VI input = broadcast_int(load_word(inputs + r * x_stride));
      for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = dot_bf16(sum[r][v], weight[v], input);
    }
  }
};

struct Bf16DotPanel : PlainPanel {
  static constexpr int kRowPanels = 1;
  static constexpr int64_t kChunkGroups = 12;  // 384 inputs of 32 bf16 are 24 KiB

  static int64_t row_bytes(int64_t num_groups) { return num_groups * kGroupSize * sizeof(uint16_t); }

  static void prepare(const float* x, int64_t num_inputs, int64_t num_groups, std::byte* row) {
    uint16_t* out = reinterpret_cast<uint16_t*>(row);
    int64_t i = 0;
    for (; i + VF::kLanes <= num_inputs; i += VF::kLanes) store_bf16(out + i, load(x + i));
    for (; i < num_groups * kGroupSize; i += VF::kLanes) {
      const int64_t left = num_inputs - i;
      store_bf16(out + i, left > 0 ? load_partial(x + i, static_cast<int>(left)) : zero());
    }
  }

  static void multiply(const PreparedRows& rows, const std::byte* panel, int64_t num_groups, float* sums, std::byte*) {
    for (int64_t group = 0; group < num_groups; group += kChunkGroups) {
      const int64_t chunk = num_groups - group < kChunkGroups ? num_groups - group : kChunkGroups;
      const int64_t num_pairs = chunk * kGroupSize / 2;
      const std::byte* weights = panel + group * kGroupSize / 2 * Bf16Weights::kPairBytes;
      const Bf16DotTile tile{rows.data + group * kGroupSize * static_cast<int64_t>(sizeof(uint16_t)),
                             rows.stride,
                             weights,
                             num_pairs,
                             sums,
                             rows.count,
                             lookahead_from(weights, num_pairs * Bf16Weights::kPairBytes, rows.count <= kBf16TileRows)};
      for_each_row_block<kBf16TileRows>(rows.count, tile);
    }
  }
};

#else

using Bf16DotPanel = Bf16Panel;

#endif

}  // namespace octavo::OCTAVO_ISA
