// The largest magnitude of some floats, by which they are rounded to integers.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo::OCTAVO_ISA {

template <class To, class From>
static inline To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof(result));
  return result;
}

// Found on the bits: NaN counts as larger than everything, so that a scale made of it is NaN and reaches the outputs.
static inline float largest_magnitude(const float* x, int64_t size) {
  int32_t largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int32_t magnitude = bits_of<int32_t>(x[i]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return bits_of<float>(largest);
}

}  // namespace octavo::OCTAVO_ISA
