#include "packed_weight.h"

#include <cstring>
#include <stdexcept>

namespace octavo {
namespace {

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // stay NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);                  // round to nearest even
}

float from_bf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

size_t bytes_per_element(WeightFormat format) { return format == WeightFormat::kFp32 ? 4 : 2; }

}  // namespace

WeightFormat weight_format_from_name(const std::string& name) {
  if (name == "fp32") return WeightFormat::kFp32;
  if (name == "bf16") return WeightFormat::kBf16;
  throw std::invalid_argument("weight_format: expected fp32 or bf16, got " + name);
}

const char* weight_format_name(WeightFormat format) { return format == WeightFormat::kFp32 ? "fp32" : "bf16"; }

PackedWeight pack_weight(const std::vector<WeightPart>& parts, int64_t num_inputs, WeightFormat format) {
  int64_t num_outputs = 0;
  for (const WeightPart& part : parts) num_outputs += part.num_rows;
  PackedWeight weight{format, num_outputs, num_inputs,
                      AlignedStorage(num_outputs * num_inputs * bytes_per_element(format))};
  int64_t element = 0;
  for (const WeightPart& part : parts) {
    for (int64_t i = 0; i < part.num_rows * num_inputs; ++i, ++element) {
      if (format == WeightFormat::kFp32) {
        reinterpret_cast<float*>(weight.panels.data())[element] = part.data[i];
      } else {
        reinterpret_cast<uint16_t*>(weight.panels.data())[element] = to_bf16(part.data[i]);
      }
    }
  }
  return weight;
}

void unpack_row(const PackedWeight& weight, int64_t row, float* out) {
  for (int64_t i = 0; i < weight.num_inputs; ++i) {
    const int64_t element = row * weight.num_inputs + i;
    out[i] = weight.format == WeightFormat::kFp32
                 ? reinterpret_cast<const float*>(weight.panels.data())[element]
                 : from_bf16(reinterpret_cast<const uint16_t*>(weight.panels.data())[element]);
  }
}

}  // namespace octavo
