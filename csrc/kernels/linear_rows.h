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

// What a kind of panel needs around a product, where nothing: rows in blocks of any size, and no set-up.
struct PlainPanel {
  struct Setup {};
  static constexpr int64_t kRowBlock = 1;
};

// Reads a word of prepared inputs.
static inline int32_t load_word(const std::byte* p) {
  int32_t word;
  memcpy(&word, p, sizeof(word));
  return word;
}

// Weights to ask for while others are multiplied: of each of the panels that are multiplied side by side, num_bytes at
// `begin`.
struct Lookahead {
  const std::byte* begin;
  int64_t num_bytes;
};

// What to ask for while num_bytes of weights are multiplied: a single block of rows looks kLookaheadBytes ahead, if at
// all; several share the weights that come next.
static inline Lookahead lookahead_from(const std::byte* weights, int64_t num_bytes, bool single_block) {
  if (!single_block) return {weights + num_bytes, num_bytes};
  return {weights + kLookaheadBytes, kLookaheadBytes > 0 ? num_bytes : 0};
}

// The part that the block of num_rows at first_row asks for, of the Lookahead of all rows.
static inline Lookahead share_of_lookahead(const Lookahead& ahead, int64_t first_row, int64_t num_rows,
                                           int64_t all_rows) {
  return {ahead.begin + ahead.num_bytes * first_row / all_rows, ahead.num_bytes * num_rows / all_rows};
}

// Asks for the lines of a Lookahead, evenly over num_steps steps: the same number in each, so that its branch can be
// foretold.
template <int kPanels = 1>
class Prefetcher {
 public:
  Prefetcher(const Lookahead& ahead, int64_t num_steps, int64_t panel_bytes)
      : next_(ahead.begin),
        step_bytes_(ahead.num_bytes / num_steps),
        lines_per_step_((step_bytes_ + 63) / 64),
        panel_bytes_(panel_bytes) {}

  void step() {
    for (int64_t line = 0; line < lines_per_step_; ++line) {
      for (int panel = 0; panel < kPanels; ++panel) __builtin_prefetch(next_ + line * 64 + panel * panel_bytes_, 0, 2);
    }
    next_ += step_bytes_;
  }

 private:
  const std::byte* next_;
  int64_t step_bytes_;
  int64_t lines_per_step_;
  int64_t panel_bytes_;
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
