// Products with int8 and int4 panels: integer dot products per group of inputs, scaled and added in fp32, group by
// group.
//
// The inputs are rounded, per row and group of 32, to integers of Dot::Activation's width.
#pragma once

#include "kernels/linear_rows.h"
#include "kernels/magnitude.h"

namespace octavo::OCTAVO_ISA {

template <class Integer>
struct ActivationGroup {
  Integer quants[kGroupSize];
  float scale;
  float sum;           // scale * sum of quants: what a minimum is multiplied with
  int32_t offsets[3];  // -128 * sum of quants: over each half, and over the group
};

// Where four sixteen-bit activations go, so that steps 0 and 1 of Int8Dot find inputs 0, 2 and 1, 3.
template <class Integer>
constexpr int kQuadPlace[4] = {0, sizeof(Integer) == 2 ? 2 : 1, sizeof(Integer) == 2 ? 1 : 2, 3};

template <class Integer>
void quantise_group(const float* x, ActivationGroup<Integer>& out) {
  constexpr float kLimit = sizeof(Integer) == 1 ? 127.0f : 32767.0f;
  constexpr float kSmallest = 1e-30f;      // below, the group is rounded to zero and 1 / scale stays finite
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even
  const float magnitude = largest_magnitude(x, kGroupSize);
  const float inverse = magnitude > kSmallest ? kLimit / magnitude : 0.0f;
  int32_t quants[kGroupSize];
  uint32_t sums[2] = {0, 0};  // unsigned, for those of NaN and infinity overflow
  for (int i = 0; i < kGroupSize; ++i)
    quants[i] = bits_of<int32_t>(x[i] * inverse + kRounder) - bits_of<int32_t>(kRounder);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kGroupSize / 2; ++i) sums[half] += static_cast<uint32_t>(quants[half * kGroupSize / 2 + i]);
  }
  for (int i = 0; i < kGroupSize; i += 4) {
    for (int k = 0; k < 4; ++k) out.quants[i + kQuadPlace<Integer>[k]] = static_cast<Integer>(quants[i + k]);
  }
  out.scale = magnitude / kLimit;
  out.sum = out.scale * static_cast<float>(static_cast<int32_t>(sums[0] + sums[1]));
  out.offsets[0] = static_cast<int32_t>(-128u * sums[0]);
  out.offsets[1] = static_cast<int32_t>(-128u * sums[1]);
  out.offsets[2] = static_cast<int32_t>(-128u * (sums[0] + sums[1]));
}

static inline VF load_scales(const float* p) { return load(p); }
static inline VF load_scales(const uint16_t* p) { return load_fp16(p); }

// A block of rows times one panel. Dot multiplies; Scale is uint16_t (fp16) or float.
template <class Dot, PanelKind kKind, class Scale>
struct GroupedTile {
  static constexpr PanelLayout kLayout = panel_layout(kKind);
  static constexpr int kScales = kLayout.scales_per_group;
  static constexpr int kVectorBytes = VF::kLanes * 4;
  static constexpr int kRowBytes = kPanelWidth * 4;  // bytes of a panel between the loads of one lane
  static constexpr int kLoads = kLayout.quant_bytes() / kRowBytes / kScales;
  static_assert(sizeof(Scale) == kLayout.scale_bytes && kPanelVectors % kGroupedTileVectors == 0);

  // Vectors of outputs taken together: one row has room for a whole panel, and so reads it in the order of addresses.
  static constexpr int vectors_beside(int num_rows) { return num_rows == 1 ? kPanelVectors : kGroupedTileVectors; }

  using Activations = ActivationGroup<typename Dot::Activation>;

  const std::byte* x;
  int64_t x_stride;  // bytes
  const std::byte* panel;
  int64_t num_groups;
  float* sums;  // [num_rows, kPanelWidth]
  int64_t num_rows;
  Lookahead next;

  template <int kRows>
  void run(int64_t first_row) const {
    Prefetcher<> ahead(share_of_lookahead(next, first_row, kRows, num_rows), num_groups, 0);
    constexpr int kVectors = vectors_beside(kRows);
    const std::byte* inputs = x + first_row * x_stride;
    const std::byte* group = panel;
    float* tile_sums = sums + first_row * kPanelWidth;
    for (int64_t g = 0; g < num_groups; ++g, group += kLayout.group_bytes(), inputs += sizeof(Activations)) {
      ahead.step();
      for (int vector = 0; vector < kPanelVectors; vector += kVectors) {
        for (int part = 0; part < kScales; ++part)
          add_part<kRows, kVectors>(inputs, group, part, vector, tile_sums + vector * VF::kLanes);
      }
    }
  }

  const Activations& activations(const std::byte* inputs, int row) const {
    return *reinterpret_cast<const Activations*>(inputs + row * x_stride);
  }

  template <int kRows, int kVectors>
  void add_part(const std::byte* inputs, const std::byte* group, int part, int vector, float* tile_sums) const {
    VI dots[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      const VI start = Dot::start(activations(inputs, r).offsets[kScales == 1 ? 2 : part]);
      for (int v = 0; v < kVectors; ++v) dots[r][v] = start;
    }
    const std::byte* quants = group + part * kLoads * kRowBytes + vector * kVectorBytes;
    const int first_step = part * kLoads * Dot::kSteps;
#pragma GCC unroll 8
    for (int i = 0; i < kLoads; ++i) {
      VI loaded[kVectors];
      for (int v = 0; v < kVectors; ++v) loaded[v] = load_bytes(quants + i * kRowBytes + v * kVectorBytes);
      add_step<kRows, kVectors, 0>(inputs, loaded, first_step + i * Dot::kSteps, dots);
      if constexpr (Dot::kSteps == 2)
        add_step<kRows, kVectors, 1>(inputs, loaded, first_step + i * Dot::kSteps + 1, dots);
    }
    scale_and_add<kRows, kVectors>(inputs, group + kLayout.quant_bytes(), part, vector, dots, tile_sums);
  }

  template <int kRows, int kVectors, int kStep>
  void add_step(const std::byte* inputs, const VI (&loaded)[kVectors], int step, VI (&dots)[kRows][kVectors]) const {
    VI weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = Dot::template weights<kStep>(loaded[v]);
    for (int r = 0; r < kRows; ++r) {
      const VI input = broadcast_int(load_word(inputs + r * x_stride + step * sizeof(int32_t)));
      for (int v = 0; v < kVectors; ++v) dots[r][v] = Dot::add(dots[r][v], weights[v], input);
    }
  }

  template <int kRows, int kVectors>
  void scale_and_add(const std::byte* inputs, const std::byte* scales, int part, int vector,
                     const VI (&dots)[kRows][kVectors], float* tile_sums) const {
    const Scale* scale = reinterpret_cast<const Scale*>(scales) + part * kPanelWidth + vector * VF::kLanes;
    for (int v = 0; v < kVectors; ++v) {
      const VF weight_scale = load_scales(scale + v * VF::kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Activations& input = activations(inputs, r);
        float* sum = tile_sums + r * kPanelWidth + v * VF::kLanes;
        VF total = load(sum);
        if constexpr (kLayout.minimum)
          total = fma(load_scales(scale + kPanelWidth + v * VF::kLanes), broadcast(input.sum), total);
        store(sum, fma(Dot::finish(dots[r][v]), weight_scale * broadcast(input.scale), total));
      }
    }
  }
};

template <class Dot, PanelKind kKind, class Scale>
struct GroupedPanel : PlainPanel {
  using Tile = GroupedTile<Dot, kKind, Scale>;
  using Activations = typename Tile::Activations;
  static constexpr int kRowPanels = 1;
  static constexpr int64_t kChunkGroups = 16;  // 512 inputs: 10 KiB of int4, 18 KiB of int8

  static int64_t row_bytes(int64_t num_groups) { return num_groups * sizeof(Activations); }

  static void prepare(const float* x, int64_t num_inputs, int64_t num_groups, std::byte* row) {
    Activations* groups = reinterpret_cast<Activations*>(row);
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t left = num_inputs - group * kGroupSize;
      if (left >= kGroupSize) {
        quantise_group(x + group * kGroupSize, groups[group]);
      } else {
        float padded[kGroupSize] = {};
        for (int64_t i = 0; i < left; ++i) padded[i] = x[group * kGroupSize + i];
        quantise_group(padded, groups[group]);
      }
    }
  }

  static void multiply(const PreparedRows& rows, const std::byte* panel, int64_t num_groups, float* sums, std::byte*) {
    for (int64_t group = 0; group < num_groups; group += kChunkGroups) {
      const int64_t chunk = num_groups - group < kChunkGroups ? num_groups - group : kChunkGroups;
      const std::byte* weights = panel + group * Tile::kLayout.group_bytes();
      const int64_t chunk_bytes = chunk * Tile::kLayout.group_bytes();
      const Tile tile{rows.data + group * static_cast<int64_t>(sizeof(Activations)),
                      rows.stride,
                      weights,
                      chunk,
                      sums,
                      rows.count,
                      lookahead_from(weights, chunk_bytes, rows.count <= kGroupedTileRows)};
      for_each_row_block<kGroupedTileRows>(rows.count, tile);
    }
  }
};

}  // namespace octavo::OCTAVO_ISA
