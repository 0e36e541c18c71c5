// The shape of all tiles, in the form that the processor is told it.
#pragma once

#include <cstdint>

namespace octavo::OCTAVO_ISA {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;
constexpr int kNumTiles = 8;

// Intel's layout of the 64 bytes that ldtilecfg reads.
struct alignas(64) TileShapes {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileShapes) == 64);

static constexpr TileShapes whole_tiles() {
  TileShapes shapes{};
  shapes.palette = 1;
  for (int tile = 0; tile < kNumTiles; ++tile) {
    shapes.row_bytes[tile] = kTileRowBytes;
    shapes.rows[tile] = kTileRows;
  }
  return shapes;
}

constexpr TileShapes kWholeTiles = whole_tiles();

}  // namespace octavo::OCTAVO_ISA
