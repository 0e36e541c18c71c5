// A linear weight in the layout that the matrix kernels stream.
//
// The outputs are cut into panels of 32, the inputs into groups of 32 (the last ones padded with zeros); a panel lies
// in memory group by group. In a group everything is in rows of 32 words of 32 bits, one word per output. A word holds
// the next inputs of its output: one fp32; two bf16, the first in the lower half; four int8; or eight int4, the first
// four in the lower nibbles of the word's bytes and the next four in the upper ones. The rows of a group are followed
// by its scales, [scales][output], and then by its minima, [output].
//
//     int4:  value = scale * q + minimum             q in 0 .. 15
//     int8:  value = scale * (q - 128) [+ minimum]   q in 0 .. 255
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thread_pool.h"
#include "weight_arena.h"
#include "weight_block.h"

namespace octavo {

enum class WeightFormat { kFp32, kBf16, kInt8, kInt4 };

constexpr int kPanelWidth = 32;  // outputs

enum class PanelKind {
  kFp32,
  kBf16,
  kInt8,         // fp16 scales
  kInt8Minimum,  // fp32 scales and minima
  kInt8Group16,  // an fp32 scale for each half of a group
  kInt4,         // fp16 scales and minima
  kInt4Wide,     // fp32 scales and minima
};

struct PanelLayout {
  int bits;              // per weight
  int scales_per_group;  // of one output
  int scale_bytes;
  bool minimum;

  constexpr int words() const { return bits * kGroupSize / 32; }  // per output and group
  constexpr int quant_bytes() const { return words() * 4 * kPanelWidth; }
  constexpr int group_bytes() const {
    return quant_bytes() + (scales_per_group + (minimum ? 1 : 0)) * scale_bytes * kPanelWidth;
  }
};

constexpr PanelLayout panel_layout(PanelKind kind) {
  switch (kind) {
    case PanelKind::kFp32:
      return {32, 0, 0, false};
    case PanelKind::kBf16:
      return {16, 0, 0, false};
    case PanelKind::kInt8:
      return {8, 1, 2, false};
    case PanelKind::kInt8Minimum:
      return {8, 1, 4, true};
    case PanelKind::kInt8Group16:
      return {8, 2, 4, false};
    case PanelKind::kInt4:
      return {4, 1, 2, true};
    case PanelKind::kInt4Wide:
      return {4, 1, 4, true};
  }
  return {};
}

// Consecutive outputs whose panels are of one kind.
struct WeightSegment {
  PanelKind kind;
  int64_t first_output;
  int64_t num_outputs;
  int64_t first_panel;
  int64_t num_panels;
  int64_t num_groups;
  int64_t panel_bytes;
  std::byte* panels;
};

struct PackedWeight {
  static constexpr int kMaxSegments = 4;

  WeightFormat format;  // as asked for; parts that the file holds in int4 or int8 groups keep their bits
  int64_t num_outputs;
  int64_t num_inputs;
  int64_t num_panels;
  int num_segments;
  WeightSegment segments[kMaxSegments];
  std::shared_ptr<std::byte> panels;
  int64_t num_bytes;
};

// Rows of one tensor of a model file, as they lie there.
struct WeightPart {
  WeightEncoding encoding;
  const std::byte* data;
  int64_t num_rows;
};

// Throws std::invalid_argument when the name is not a format's.
WeightFormat weight_format_from_name(const std::string& name);
const char* weight_format_name(WeightFormat format);

// Packs the parts, stacked along their rows, into the arena, on all threads of the pool. Throws std::invalid_argument
// when there are too many parts of different kinds.
PackedWeight pack_weight(const std::vector<WeightPart>& parts, int64_t num_inputs, WeightFormat format,
                         WeightArena& arena, ThreadPool& pool);

// Writes row `row` (one output) as num_inputs floats.
void unpack_row(const PackedWeight& weight, int64_t row, float* out);

}  // namespace octavo
