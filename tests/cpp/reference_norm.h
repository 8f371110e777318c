// A plain reference for norms of gradients, written apart from kernels/norm.h: lanes of a block as
// lists, summed level by level.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/types.h"
#include "kernels/norm.h"
#include "reference_tree.h"

namespace fastcomm::reference {

/// The elements of an array of a floating-point type, which fp64 holds exactly.
inline std::vector<double> widened(DType dtype, const std::vector<char>& bytes) {
  const size_t size = dtype_size(dtype);
  std::vector<double> values;
  for (size_t at = 0; at < bytes.size(); at += size) {
    const auto read = [&](auto value) {
      std::memcpy(&value, &bytes[at], sizeof(value));
      values.push_back(widen(value));
    };
    if (dtype == DType::kFloat32) read(float());
    if (dtype == DType::kFloat64) read(double());
    if (dtype == DType::kFloat16) read(Float16());
    if (dtype == DType::kBFloat16) read(BrainFloat16());
  }
  return values;
}

inline double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) {
    if (std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
    most = std::max(most, std::fabs(value));
  }
  return most;
}

inline double part_of(const std::vector<double>& values, NormKind kind) {
  if (kind == NormKind::kNone) return 0;
  if (kind == NormKind::kInfinity) return largest(values);
  double part = 0;
  for (size_t begin = 0; begin < values.size(); begin += 4096) {
    std::vector<double> lanes(32, 0);
    for (size_t i = begin; i < std::min(values.size(), begin + 4096); ++i) {
      const double square = values[i] * values[i];
      lanes[(i - begin) % 32] += kind == NormKind::kTwo ? square : std::fabs(values[i]);
    }
    part += tree(lanes);
  }
  return part;
}

inline double norm_of(const std::vector<double>& parts, NormKind kind) {
  if (kind == NormKind::kInfinity) return largest(parts);
  double sum = 0;
  for (const double part : parts) sum += part;
  return kind == NormKind::kTwo ? std::sqrt(sum) : sum;
}

inline bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

}  // namespace fastcomm::reference
