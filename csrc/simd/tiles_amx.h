// Tiles of AMX with BF16; see tiles.h.
//
// In assembly, because the compilers' intrinsics want the numbers of tiles as literals, and those of GCC 12 do not tell
// the compiler which memory they read.
#pragma once

#include "simd/tile_shape.h"

namespace octavo::OCTAVO_ISA {

class TileConfiguration {
 public:
  TileConfiguration() { asm volatile("ldtilecfg %0" : : "m"(kWholeTiles)); }
  // Tiles in their first state cost nothing when the system switches threads.
  ~TileConfiguration() { asm volatile("tilerelease"); }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

template <int kTile>
static inline void load_tile(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
static inline void store_tile(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}

template <int kSums, int kX, int kWeights>
static inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kX), "i"(kWeights));
}

}  // namespace octavo::OCTAVO_ISA
