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
    char* at = &bytes[i * dtype_size(dtype)];
    if (dtype == DType::kFloat32) {
      const auto value = static_cast<float>(magnitude(-4, 26));
      std::memcpy(at, &value, sizeof(value));
    } else if (dtype == DType::kFloat64) {
      const double value = magnitude(-4, 56);
      std::memcpy(at, &value, sizeof(value));
    } else if (dtype == DType::kFloat16) {
      const auto value = static_cast<_Float16>(magnitude(-20, 12));
      std::memcpy(at, &value, sizeof(value));
    } else if (dtype == DType::kBFloat16) {
      const uint16_t value = reference::narrow_bfloat16(static_cast<float>(magnitude(-4, 30)));
      std::memcpy(at, &value, sizeof(value));
    } else if (dtype == DType::kBool) {
      *at = random() % 8 == 0;
    } else {
      const uint64_t value = random();
      std::memcpy(at, &value, dtype_size(dtype));
    }
  }
  return bytes;
}

}  // namespace fastcomm::testing
