// Scalar conversions between float and the two 16-bit formats, rounding to nearest even. Not for code that is compiled
// per instruction set: see simd/.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {

template <class To, class From>
inline To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

inline float from_bf16(uint16_t value) { return bit_cast<float>(static_cast<uint32_t>(value) << 16); }

inline uint16_t to_bf16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // stay NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float from_fp16(uint16_t value) {
  const uint32_t sign = (value & 0x8000u) << 16;
  const uint32_t magnitude = value & 0x7fffu;
  if (magnitude >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  const float scaled = bit_cast<float>(magnitude << 13) * 0x1p112f;  // moves the exponent's bias; exact, subnormals too
  return bit_cast<float>(sign | bit_cast<uint32_t>(scaled));
}

inline uint16_t to_fp16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and more
  if (magnitude < 0x38800000u) {                                               // subnormal: the addition rounds
    return static_cast<uint16_t>(sign | (bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

}  // namespace octavo
