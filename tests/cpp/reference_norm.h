// A plain reference for norms of gradients, independent of kernels/norm.h: lists of columns, of
// blocks and of tensors, each summed level by level.
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
  std::vector<double> values;
  with_type(dtype, [&](auto value) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(value)) {
      std::memcpy(&value, &bytes[at], sizeof(value));
      values.push_back(static_cast<double>(widen(value)));
    }
  });
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

/// Up to 4,096 terms: pieces of 512 are rows of 32 lanes, and every column is summed downwards.
inline double block_of(const double* terms, size_t count) {
  std::vector<double> columns(32 * 8, 0);  // lane by lane, 8 pieces for each
  for (size_t i = 0; i < count; ++i) {
    const size_t piece = i / 512, lane = i % 32;
    columns[lane * 8 + piece] += terms[i];
  }
  return tree(columns);
}

inline double part_of(const std::vector<double>& values, NormKind kind) {
  if (kind == NormKind::kNone || values.empty()) return 0;
  if (kind == NormKind::kInfinity) return largest(values);
  std::vector<double> terms, blocks;
  for (const double v : values) terms.push_back(kind == NormKind::kTwo ? v * v : std::fabs(v));
  for (size_t begin = 0; begin < terms.size(); begin += 4096) {
    blocks.push_back(block_of(&terms[begin], std::min<size_t>(terms.size() - begin, 4096)));
  }
  return tree(blocks);
}

inline double norm_of(const std::vector<double>& parts, NormKind kind) {
  if (parts.empty()) return 0;
  if (kind == NormKind::kInfinity) return largest(parts);
  return kind == NormKind::kTwo ? std::sqrt(tree(parts)) : tree(parts);
}

inline bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

}  // namespace fastcomm::reference
