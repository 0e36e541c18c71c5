// What the matrix kernels need of an instruction set, beside simd.h; each header below defines the same names.
//
// - kFloatTileRows, kBf16TileRows: most rows of a tile of kPanelWidth outputs whose sums stay in registers.
// - kGroupedTileRows, kGroupedTileVectors: the same for the integer tiles, which take that many vectors of a panel at a
//   time.
// - kFloatRowPanels: panels that a single row passes side by side.
// - kLookaheadBytes: how far ahead a single block of rows asks for weights; 0: it leaves that to the processor.
// - VI: VF::kLanes lanes of 32 bits; a lane belongs to one output. load_bytes(p), broadcast_int(x).
// - even_bf16(v), odd_bf16(v): the lower and the upper bf16 of each lane as a float, exactly.
// - dot_bf16(sum, weights, x), where OCTAVO_BF16_DOT is defined: sum + the two products of each lane.
// - Int4Dot, Int8Dot: dot products along the bytes of a lane.
//   - Activation: int8_t or int16_t.
//   - kSteps, weights<step>(v): loaded weights in the form that `add` takes; four bytes of activations per step.
//   - start(offset), add(sum, w, x), finish(sum): int8 weights are stored plus 128; offset is -128 times the sum of x.
#pragma once

#if defined(OCTAVO_EMULATED)
#include "simd/dot_emulated512.h"
#elif defined(__AVX512F__)
#include "simd/dot_avx512.h"
#elif defined(__AVX2__)
#include "simd/dot_avx2.h"
#elif defined(__aarch64__)
#include "simd/dot_neon.h"
#endif
