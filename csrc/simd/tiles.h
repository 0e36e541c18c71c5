// Tiles of the instruction set that is being compiled, where it has any; each header below defines the same names.
//
// There are eight tiles per thread, each of kTileRows rows of 64 bytes: sixteen floats, or sixteen pairs of bf16.
//
//   TileConfiguration                     tiles can be used by the thread that made one, as long as it lives
//   load_tile<tile>(p, stride)            rows lie `stride` bytes apart
//   store_tile<tile>(p, stride)
//   multiply_tiles<sums, x, weights>()    sums[m][n] += (sum of x[m][k].first * weights[k][n].first, in the order of k)
//                                         + (the same of .second); sums of fused multiply-adds from zero, to nearest
//                                         even; numbers below the normal ones count as zero, in terms and in results
//
// OCTAVO_TILES is defined where there are tiles.
#pragma once

#include <cstdint>

#if defined(OCTAVO_EMULATED_TILES)
#include "simd/tiles_emulated.h"
#define OCTAVO_TILES 1
#elif defined(__AMX_BF16__)
#include "simd/tiles_amx.h"
#define OCTAVO_TILES 1
#endif
