// Tiles in plain loops, after the pseudo-code of Intel's manual for ldtilecfg, tileloadd, tilestored, tdpbf16ps and
// tilerelease: lets a machine without AMX test the kernels' logic. What the processor refuses stops the program. For
// tests only. See tiles.h.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstring>

#include "simd/tile_shape.h"

namespace octavo::OCTAVO_ISA {

struct TileState {
  TileShapes shapes;  // palette 0: not configured
  std::byte tiles[kNumTiles][kTileRows][kTileRowBytes];
};

static thread_local TileState tile_state;

static inline void require(bool allowed) {
  if (!allowed) __builtin_trap();
}

class TileConfiguration {
 public:
  TileConfiguration() {
    tile_state = {};
    tile_state.shapes = kWholeTiles;
  }
  ~TileConfiguration() { tile_state = {}; }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

template <int kTile>
static inline void load_tile(const void* p, int64_t stride) {
  require(tile_state.shapes.palette == 1);
  memset(tile_state.tiles[kTile], 0, sizeof(tile_state.tiles[kTile]));
  for (int row = 0; row < tile_state.shapes.rows[kTile]; ++row) {
    memcpy(tile_state.tiles[kTile][row], static_cast<const std::byte*>(p) + row * stride,
           tile_state.shapes.row_bytes[kTile]);
  }
}

template <int kTile>
static inline void store_tile(void* p, int64_t stride) {
  require(tile_state.shapes.palette == 1);
  for (int row = 0; row < tile_state.shapes.rows[kTile]; ++row) {
    memcpy(static_cast<std::byte*>(p) + row * stride, tile_state.tiles[kTile][row], tile_state.shapes.row_bytes[kTile]);
  }
}

// Zero, with the sign of x, where x is smaller than the normal numbers.
static inline float flush(float x) { return __builtin_fabsf(x) < FLT_MIN ? __builtin_copysignf(0.0f, x) : x; }

// One of the two bf16 of each word of a row of a tile.
struct TileRow {
  float values[kTileRowBytes / 4];

  TileRow(const std::byte* row, int shift) {
    uint32_t words[kTileRowBytes / 4];
    memcpy(words, row, sizeof(words));
    for (int n = 0; n < kTileRowBytes / 4; ++n) {
      const uint32_t bits = words[n] >> shift << 16;
      memcpy(&values[n], &bits, sizeof(bits));
      values[n] = flush(values[n]);
    }
  }
};

template <int kSums, int kX, int kWeights>
static inline void multiply_tiles() {
  static_assert(kSums != kX && kSums != kWeights && kX != kWeights);
  const TileShapes& shapes = tile_state.shapes;
  require(shapes.palette == 1 && shapes.rows[kX] == shapes.rows[kSums] &&
          shapes.row_bytes[kX] == 4 * shapes.rows[kWeights] && shapes.row_bytes[kWeights] == shapes.row_bytes[kSums]);
  const int width = shapes.row_bytes[kSums] / 4;
  for (int m = 0; m < shapes.rows[kSums]; ++m) {
    float halves[2][kTileRowBytes / 4] = {};
    for (int half = 0; half < 2; ++half) {
      const TileRow x(tile_state.tiles[kX][m], 16 * half);
      for (int k = 0; k < shapes.rows[kWeights]; ++k) {
        const TileRow weights(tile_state.tiles[kWeights][k], 16 * half);
        for (int n = 0; n < width; ++n)
          halves[half][n] = flush(__builtin_fmaf(x.values[k], weights.values[n], halves[half][n]));
      }
    }
    float sums[kTileRowBytes / 4];
    memcpy(sums, tile_state.tiles[kSums][m], sizeof(sums));
    for (int n = 0; n < width; ++n) sums[n] = flush(flush(sums[n]) + flush(halves[0][n] + halves[1][n]));
    memcpy(tile_state.tiles[kSums][m], sums, sizeof(sums));
  }
}

}  // namespace octavo::OCTAVO_ISA
