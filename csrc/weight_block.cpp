#include "weight_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "float16.h"

namespace octavo {
namespace {

struct EncodingInfo {
  const char* name;
  int block_size;  // weights
  int block_bytes;
};

// In the order of WeightEncoding.
constexpr EncodingInfo kEncodings[] = {
    {"f32", 1, 4},    {"f16", 1, 2},    {"bf16", 1, 2},     {"q4_0", 32, 18},   {"q4_1", 32, 20},   {"q5_0", 32, 22},
    {"q5_1", 32, 24}, {"q8_0", 32, 34}, {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210},
};

const EncodingInfo& info(WeightEncoding encoding) { return kEncodings[static_cast<int>(encoding)]; }

float read_fp16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return from_fp16(bits);
}

void set_scale(QuantBlock& block, int zero, float scale, float minimum) {
  block.zero = zero;
  block.scales[0] = block.scales[1] = scale;
  block.minimum = minimum;
}

// Sixteen bytes of nibbles: weights 0 .. 15 in the lower ones, 16 .. 31 in the upper ones.
void read_nibbles(const uint8_t* p, uint8_t* quants) {
  for (int i = 0; i < 16; ++i) {
    quants[i] = p[i] & 15;
    quants[i + 16] = p[i] >> 4;
  }
}

// The fifth bit of each weight, and `offset` on top.
void add_fifth_bits(const uint8_t* p, uint8_t offset, uint8_t* quants) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  for (int i = 0; i < kGroupSize; ++i) quants[i] = static_cast<uint8_t>(quants[i] + (bits >> i & 1) * 16 + offset);
}

void read_q4_0(const uint8_t* p, QuantBlock& block) {
  const float scale = read_fp16(p);
  set_scale(block, 0, scale, -8 * scale);
  read_nibbles(p + 2, block.quants);
}

void read_q4_1(const uint8_t* p, QuantBlock& block) {
  set_scale(block, 0, read_fp16(p), read_fp16(p + 2));
  read_nibbles(p + 4, block.quants);
}

void read_q5_0(const uint8_t* p, QuantBlock& block) {
  set_scale(block, 128, read_fp16(p), 0);
  read_nibbles(p + 6, block.quants);
  add_fifth_bits(p + 2, 128 - 16, block.quants);
}

void read_q5_1(const uint8_t* p, QuantBlock& block) {
  set_scale(block, 128, read_fp16(p), read_fp16(p + 2));
  read_nibbles(p + 8, block.quants);
  add_fifth_bits(p + 4, 128, block.quants);
}

void read_q8_0(const uint8_t* p, QuantBlock& block) {
  set_scale(block, 128, read_fp16(p), 0);
  for (int i = 0; i < kGroupSize; ++i) block.quants[i] = p[2 + i] ^ 128;
}

// Six-bit scale and minimum of sub-block 0 .. 7 in the twelve bytes of Q4_K and Q5_K.
void set_k_scale(const uint8_t* p, int sub_block, int zero, QuantBlock& block) {
  const uint8_t* packed = p + 4;
  int scale, minimum;
  if (sub_block < 4) {
    scale = packed[sub_block] & 63;
    minimum = packed[sub_block + 4] & 63;
  } else {
    scale = (packed[sub_block + 4] & 15) | (packed[sub_block - 4] >> 6) << 4;
    minimum = packed[sub_block + 4] >> 4 | (packed[sub_block] >> 6) << 4;
  }
  set_scale(block, zero, read_fp16(p) * static_cast<float>(scale), -(read_fp16(p + 2) * static_cast<float>(minimum)));
}

// Sub-blocks 2 * i and 2 * i + 1 are the lower and the upper nibbles of 32 bytes.
void read_k_nibbles(const uint8_t* p, int sub_block, uint8_t* quants) {
  const int shift = sub_block % 2 * 4;
  p += sub_block / 2 * kGroupSize;
  for (int i = 0; i < kGroupSize; ++i) quants[i] = p[i] >> shift & 15;
}

void read_q4_k(const uint8_t* p, int sub_block, QuantBlock& block) {
  set_k_scale(p, sub_block, 0, block);
  read_k_nibbles(p + 16, sub_block, block.quants);
}

void read_q5_k(const uint8_t* p, int sub_block, QuantBlock& block) {
  set_k_scale(p, sub_block, 128, block);
  read_k_nibbles(p + 48, sub_block, block.quants);
  const uint8_t* fifth = p + 16;
  for (int i = 0; i < kGroupSize; ++i) {
    block.quants[i] = static_cast<uint8_t>(128 + block.quants[i] + (fifth[i] >> sub_block & 1) * 16);
  }
}

// Each half of a Q6_K block: 64 bytes of lower nibbles, 32 bytes with two upper bits for each of its four sub-blocks.
void read_q6_k(const uint8_t* p, int sub_block, QuantBlock& block) {
  const int half = sub_block / 4, quarter = sub_block % 4;
  const uint8_t* low = p + half * 64 + quarter % 2 * 32;
  const uint8_t* high = p + 128 + half * 32;
  for (int i = 0; i < kGroupSize; ++i) {
    const int q = (low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (quarter * 2) & 3) << 4;
    block.quants[i] = static_cast<uint8_t>(q + 128 - 32);
  }
  const float scale = read_fp16(p + 208);
  const auto* scales = reinterpret_cast<const int8_t*>(p + 192) + sub_block * 2;
  block.zero = 128;
  block.minimum = 0;
  block.scales[0] = scale * static_cast<float>(scales[0]);
  block.scales[1] = scale * static_cast<float>(scales[1]);
}

// Written so that it runs in vectors; NaN becomes 0.
uint8_t rounded_quant(float value, float limit) {
  const float positive = value > 0 ? value : 0;
  return static_cast<uint8_t>(static_cast<int>((positive < limit ? positive : limit) + 0.5f));
}

float rounded_to_fp16(float value) { return from_fp16(to_fp16(value)); }

}  // namespace

WeightEncoding weight_encoding_from_name(const std::string& name) {
  for (int i = 0; i < static_cast<int>(std::size(kEncodings)); ++i) {
    if (name == kEncodings[i].name) return static_cast<WeightEncoding>(i);
  }
  throw std::invalid_argument("encoding: unknown name " + name);
}

bool is_dense(WeightEncoding encoding) { return info(encoding).block_size == 1; }

int64_t encoded_row_bytes(WeightEncoding encoding, int64_t num_inputs) {
  const EncodingInfo& about = info(encoding);
  if (num_inputs % about.block_size != 0) {
    throw std::invalid_argument(std::string(about.name) + ": expected rows of a multiple of " +
                                std::to_string(about.block_size) + " weights, got " + std::to_string(num_inputs));
  }
  return num_inputs / about.block_size * about.block_bytes;
}

void read_quants(WeightEncoding encoding, const std::byte* row, int64_t group, QuantBlock& block) {
  const EncodingInfo& about = info(encoding);
  const int64_t groups_per_block = about.block_size / kGroupSize;
  const auto* p = reinterpret_cast<const uint8_t*>(row) + group / groups_per_block * about.block_bytes;
  const int sub_block = static_cast<int>(group % groups_per_block);
  switch (encoding) {
    case WeightEncoding::kQ4_0:
      return read_q4_0(p, block);
    case WeightEncoding::kQ4_1:
      return read_q4_1(p, block);
    case WeightEncoding::kQ5_0:
      return read_q5_0(p, block);
    case WeightEncoding::kQ5_1:
      return read_q5_1(p, block);
    case WeightEncoding::kQ8_0:
      return read_q8_0(p, block);
    case WeightEncoding::kQ4K:
      return read_q4_k(p, sub_block, block);
    case WeightEncoding::kQ5K:
      return read_q5_k(p, sub_block, block);
    case WeightEncoding::kQ6K:
      return read_q6_k(p, sub_block, block);
    case WeightEncoding::kF32:
    case WeightEncoding::kF16:
    case WeightEncoding::kBf16:
      break;
  }
  throw std::logic_error("read_quants: a dense encoding");
}

void read_floats(WeightEncoding encoding, const std::byte* row, int64_t group, int64_t num_weights, float* values) {
  if (!is_dense(encoding)) {
    QuantBlock block;
    read_quants(encoding, row, group, block);
    return to_floats(block, values);
  }
  const std::byte* p = row + group * kGroupSize * info(encoding).block_bytes;
  if (encoding == WeightEncoding::kF32) {
    std::memcpy(values, p, num_weights * sizeof(float));
  } else {
    uint16_t bits[kGroupSize];
    std::memcpy(bits, p, num_weights * sizeof(uint16_t));
    for (int64_t i = 0; i < num_weights; ++i) {
      values[i] = encoding == WeightEncoding::kBf16 ? from_bf16(bits[i]) : from_fp16(bits[i]);
    }
  }
  for (int64_t i = num_weights; i < kGroupSize; ++i) values[i] = 0;
}

void round_to_int4(const float* values, QuantBlock& block) {
  float smallest = values[0], largest = values[0];
  for (int i = 1; i < kGroupSize; ++i) {
    smallest = values[i] < smallest ? values[i] : smallest;
    largest = values[i] > largest ? values[i] : largest;
  }
  const float minimum = rounded_to_fp16(smallest);
  const float scale = rounded_to_fp16((largest - minimum) / 15);
  set_scale(block, 0, scale, minimum);
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < kGroupSize; ++i) block.quants[i] = rounded_quant((values[i] - minimum) * inverse, 15);
}

void round_to_int8(const float* values, QuantBlock& block) {
  float magnitude = 0;
  for (int i = 0; i < kGroupSize; ++i) magnitude = std::max(magnitude, std::fabs(values[i]));
  const float scale = rounded_to_fp16(magnitude / 127);
  set_scale(block, 128, scale, 0);
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < kGroupSize; ++i) block.quants[i] = rounded_quant(values[i] * inverse + 128, 255);
}

void to_floats(const QuantBlock& block, float* values) {
  for (int i = 0; i < kGroupSize; ++i) {
    values[i] = block.scales[i / 16] * static_cast<float>(block.quants[i] - block.zero) + block.minimum;
  }
}

}  // namespace octavo
