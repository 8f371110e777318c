// Inputs that show what reductions make of NaN, zeros of both signs, infinities and subnormals, and
// of the ends of an integer's range.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/types.h"

namespace fastcomm::testing {

/// The parts of a floating-point format, to write its special values.
struct Layout {
  int bits, mantissa;
};
inline Layout layout_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {32, 23};
    case DType::kFloat64:
      return {64, 52};
    case DType::kFloat16:
      return {16, 10};
    default:
      return {16, 7};
  }
}

/// An element of a float, of the kind that its position has on all ranks, so that equals meet.
inline uint64_t special_float(DType dtype, size_t position, std::mt19937_64& random) {
  const Layout form = layout_of(dtype);
  const uint64_t sign = random() % 2 << (form.bits - 1);
  const uint64_t mantissa = random() & ((uint64_t{1} << form.mantissa) - 1);
  const uint64_t exponents = (uint64_t{1} << (form.bits - 1 - form.mantissa)) - 1;
  const uint64_t infinity = exponents << form.mantissa;
  const uint64_t one = exponents / 2 << form.mantissa;
  switch (position % 8) {
    case 0:
      return sign;  // zeros
    case 1:         // a NaN of either sign and any payload among numbers, on few ranks
      return random() % 6 == 0 ? sign | infinity | std::max<uint64_t>(mantissa, 1) : sign | one;
    case 2:
      return random() % 3 == 0 ? sign | infinity : sign | one | mantissa;
    case 3:
      return sign | mantissa;  // subnormals
    case 4:
      return sign | (infinity - 1 - random() % 2);  // the largest
    case 5:
      return random() % 2 == 0 ? sign : sign | (infinity + random() % 2);  // 0 * inf is NaN
    case 6:  // near 1, so that the order of a product shows
      return sign | one | mantissa;
    default:
      return random();
  }
}

/// Random values and special ones, as bytes: of the same kind at a position on all ranks.
inline std::vector<char> special_input(DType dtype, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 7);
  const size_t size = dtype_size(dtype);
  std::vector<char> data(count * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t value = random();
    if (is_floating(dtype)) {
      value = special_float(dtype, i, random);
    } else if (dtype == DType::kBool) {
      value = i % 3 == 0 ? value % 8 != 0 : value % 2;
    } else if (i % 4 == 0) {  // the ends of the range, and zero
      value = value % 4 == 0 ? 0 : (value % 4 == 1 ? ~uint64_t{0} : uint64_t{1} << (8 * size - 1));
      value -= random() % 2;
    } else if (i % 4 == 1) {
      value |= 1;  // a product of odd numbers never becomes zero
    }
    std::memcpy(&data[i * size], &value, size);
  }
  return data;
}

}  // namespace fastcomm::testing
