// Random inputs that make the order of a sum visible.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/types.h"
#include "reference_tree.h"

namespace fastcomm::testing {

/// Random values of a type, as bytes. Floating-point values span many binades and cancel.
inline std::vector<char> random_values(DType dtype, uint64_t count, std::mt19937_64& random) {
  std::vector<char> bytes(count * dtype_size(dtype));
  const auto magnitude = [&](int low, int high) {
    const int exponent = low + static_cast<int>(random() % (high - low));
    const double sign = random() % 2 == 0 ? 1 : -1;
    return sign * std::ldexp(1.0 + double(random() % (1 << 24)) / (1 << 24), exponent);
  };
  for (uint64_t i = 0; i < count; ++i) {
    const auto put = [&](auto value) {
      std::memcpy(&bytes[i * dtype_size(dtype)], &value, dtype_size(dtype));
    };
    if (dtype == DType::kFloat32) {
      put(static_cast<float>(magnitude(-4, 26)));
    } else if (dtype == DType::kFloat64) {
      put(magnitude(-4, 56));
    } else if (dtype == DType::kFloat16) {
      put(static_cast<_Float16>(magnitude(-20, 12)));
    } else if (dtype == DType::kBFloat16) {
      put(reference::narrow_bfloat16(static_cast<float>(magnitude(-4, 30))));
    } else if (dtype == DType::kBool) {
      put(static_cast<uint8_t>(random() % 8 == 0));
    } else {
      put(random());
    }
  }
  return bytes;
}

/// The same from a seed alone.
inline std::vector<char> random_input(DType dtype, uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 1);
  return random_values(dtype, count, random);
}

}  // namespace fastcomm::testing
