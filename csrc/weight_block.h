// The encodings of weights in model files, read 32 weights at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo {

constexpr int kGroupSize = 32;  // weights of one output that share a scale

// Dense, and the block encodings of GGUF files.
enum class WeightEncoding { kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4K, kQ5K, kQ6K };

// Throws std::invalid_argument when the name is not an encoding's (in the names of octavo.kernels.host_tensor).
WeightEncoding weight_encoding_from_name(const std::string& name);

bool is_dense(WeightEncoding encoding);

// Bytes of one row. Throws std::invalid_argument when num_inputs is not a multiple of the encoding's block.
int64_t encoded_row_bytes(WeightEncoding encoding, int64_t num_inputs);

// 32 weights in integers: value i = scales[i / 16] * (quants[i] - zero) + minimum.
struct QuantBlock {
  uint8_t quants[kGroupSize];
  int zero;
  float scales[2];
  float minimum;
};

// Reads weights 32 * group .. of a row; they exist and, unless the encoding is dense, so does the whole group.
void read_quants(WeightEncoding encoding, const std::byte* row, int64_t group, QuantBlock& block);
void read_floats(WeightEncoding encoding, const std::byte* row, int64_t group, int64_t num_weights, float* values);

// Rounds 32 values to 4 bits with a minimum, or to 8 bits around 128; scale and minimum are rounded to fp16 first.
void round_to_int4(const float* values, QuantBlock& block);
void round_to_int8(const float* values, QuantBlock& block);

void to_floats(const QuantBlock& block, float* values);

}  // namespace octavo
