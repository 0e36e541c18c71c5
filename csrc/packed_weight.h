// A linear weight in the layout that the matrix kernels stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aligned_storage.h"

namespace octavo {

enum class WeightFormat { kFp32, kBf16 };

// Rows of one tensor of a model file, float32, row-major.
struct WeightPart {
  const float* data;
  int64_t num_rows;
};

struct PackedWeight {
  WeightFormat format;
  int64_t num_outputs;
  int64_t num_inputs;
  AlignedStorage panels;
};

// Throws std::invalid_argument when the name is not a format's.
WeightFormat weight_format_from_name(const std::string& name);
const char* weight_format_name(WeightFormat format);

// Packs the parts, stacked along their rows.
PackedWeight pack_weight(const std::vector<WeightPart>& parts, int64_t num_inputs, WeightFormat format);

// Writes row `row` (one output feature) as num_inputs floats.
void unpack_row(const PackedWeight& weight, int64_t row, float* out);

}  // namespace octavo
