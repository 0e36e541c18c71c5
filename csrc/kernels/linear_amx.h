// Products with bf16 panels on tiles.
//
// Sixteen pairs of inputs of sixteen outputs are a tile of weights: half a group of a panel as it lies. Sixteen
// prepared rows times 32 inputs are a tile of inputs. Every number of rows goes this way, one row included, so that
// what a row gives does not depend on the rows beside it; a tile with fewer rows than sixteen is filled up with
// whatever lies there, which is neither looked at nor mixed with the others.
#pragma once

#include "kernels/linear_float.h"
#include "simd/tiles.h"

namespace octavo::OCTAVO_ISA {

#if defined(OCTAVO_TILES)

constexpr int kWeightTile = 4;  // and the next: the halves of a panel
constexpr int64_t kPanelRowBytes = kPanelWidth * sizeof(float);
constexpr int64_t kHalfPanelBytes = kPanelRowBytes / 2;

// The kBlock-th sixteen rows of a product: a tile of inputs, and two of sums.
template <int kBlock>
struct TileBlock {
  static constexpr int kLeft = 2 * kBlock, kRight = kLeft + 1, kInputs = 6 + kBlock;

  static std::byte* block_sums(float* sums) {
    return reinterpret_cast<std::byte*>(sums + kBlock * kTileRows * kPanelWidth);
  }
  static void load_sums(float* sums) {
    load_tile<kLeft>(block_sums(sums), kPanelRowBytes);
    load_tile<kRight>(block_sums(sums) + kHalfPanelBytes, kPanelRowBytes);
  }
  static void store_sums(float* sums) {
    store_tile<kLeft>(block_sums(sums), kPanelRowBytes);
    store_tile<kRight>(block_sums(sums) + kHalfPanelBytes, kPanelRowBytes);
  }
  static void add(const std::byte* x, int64_t x_stride) {
    load_tile<kInputs>(x + kBlock * kTileRows * x_stride, x_stride);
    multiply_tiles<kLeft, kInputs, kWeightTile>();
    multiply_tiles<kRight, kInputs, kWeightTile + 1>();
  }
};

// One or two blocks of sixteen rows, one after the other, times a chunk of one panel.
struct Bf16TileProduct {
  const std::byte* x;
  int64_t x_stride;  // bytes
  const std::byte* weights;
  int64_t num_groups;
  float* sums;  // [rows in whole blocks, kPanelWidth]

  template <int kBlocks>
  void run(int64_t first_block) const {
    const std::byte* inputs = x + first_block * kTileRows * x_stride;
    const std::byte* group = weights;
    float* tile_sums = sums + first_block * kTileRows * kPanelWidth;
    TileBlock<0>::load_sums(tile_sums);
    if constexpr (kBlocks == 2) TileBlock<1>::load_sums(tile_sums);
    for (int64_t g = 0; g < num_groups; ++g, inputs += kTileRowBytes, group += kTileRows * kPanelRowBytes) {
      load_tile<kWeightTile>(group, kPanelRowBytes);
      load_tile<kWeightTile + 1>(group + kHalfPanelBytes, kPanelRowBytes);
      TileBlock<0>::add(inputs, x_stride);
      if constexpr (kBlocks == 2) TileBlock<1>::add(inputs, x_stride);
    }
    TileBlock<0>::store_sums(tile_sums);
    if constexpr (kBlocks == 2) TileBlock<1>::store_sums(tile_sums);
  }
};

struct Bf16TilePanel : Bf16DotPanel {
  using Setup = TileConfiguration;
  static constexpr int64_t kRowBlock = kTileRows;

  static void multiply(const PreparedRows& rows, const std::byte* panel, int64_t num_groups, float* sums, std::byte*) {
    for (int64_t group = 0; group < num_groups; group += kChunkGroups) {
      const int64_t chunk = num_groups - group < kChunkGroups ? num_groups - group : kChunkGroups;
      const Bf16TileProduct product{rows.data + group * kTileRowBytes, rows.stride,
                                    panel + group * kTileRows * kPanelRowBytes, chunk, sums};
      for_each_row_block<2>((rows.count + kRowBlock - 1) / kRowBlock, product);
    }
  }
};
static_assert(kGroupSize * sizeof(uint16_t) == kTileRowBytes && kGroupSize == 2 * kTileRows &&
              kPanelWidth * sizeof(uint32_t) == 2 * kTileRowBytes);

#else

using Bf16TilePanel = Bf16DotPanel;

#endif

}  // namespace octavo::OCTAVO_ISA
