// What the matrix kernels share: prepared rows, and the walk over blocks of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "packed_weight.h"
#include "simd/dot.h"

namespace octavo::OCTAVO_ISA {

constexpr int kPanelVectors = kPanelWidth / VF::kLanes;

// Rows of x in the form that a kind of panel multiplies with, padded with zeros to whole groups of inputs.
struct PreparedRows {
  std::byte* data;
  int64_t stride;  // bytes
  int64_t count;

  std::byte* row(int64_t index) const { return data + index * stride; }
};

// Reads a word of prepared inputs.
static inline int32_t load_word(const std::byte* p) {
  int32_t word;
  memcpy(&word, p, sizeof(word));
  return word;
}

// How far a single block of rows looks ahead: enough lines on the way to hide the latency of memory.
constexpr int64_t kLookaheadBytes = 2048;

// Asks for weights that follow while others are multiplied. A single block of rows looks a fixed distance ahead; of
// several blocks that multiply the same weights the first asks for those that come after all blocks are done.
template <int64_t kBytes>  // per step
class Lookahead {
 public:
  // Without a next, asks again and again for `here`, which costs nothing.
  Lookahead(const std::byte* next, const std::byte* here)
      : address_(next != nullptr ? next : here), step_(next != nullptr ? kBytes : 0) {}

  void step() {
    for (int64_t byte = 0; byte < kBytes; byte += 64) __builtin_prefetch(address_ + byte, 0, 2);
    address_ += step_;
  }

 private:
  const std::byte* address_;
  int64_t step_;
};

// Calls function.template operator()<kRows>(first_row) for the block of `num_rows` rows at first_row.
template <int kMaxRows, class Function>
void call_with_rows(int64_t num_rows, int64_t first_row, const Function& function) {
  if (num_rows == kMaxRows) {
    function.template run<kMaxRows>(first_row);
  } else if constexpr (kMaxRows > 1) {
    call_with_rows<kMaxRows - 1>(num_rows, first_row, function);
  }
}

// Cuts num_rows into the fewest blocks of at most kMaxRows rows, of nearly equal size.
template <int kMaxRows, class Function>
void for_each_row_block(int64_t num_rows, const Function& function) {
  const int64_t num_blocks = (num_rows + kMaxRows - 1) / kMaxRows;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t begin = num_rows * block / num_blocks;
    const int64_t end = num_rows * (block + 1) / num_blocks;
    call_with_rows<kMaxRows>(end - begin, begin, function);
  }
}

}  // namespace octavo::OCTAVO_ISA
