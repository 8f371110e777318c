// What a norm of gradients is made of, for the CPU and for CUDA, which give the same bits.
//
// Element i of a block goes to lane i mod 32; each lane sums in fp64, in order; the lanes are
// summed as a balanced tree over neighbours; blocks in the order of their tensor, tensors in that
// of the list. A square of an fp32 is exact in fp64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numeric.h"

namespace fastcomm {

enum class NormKind : uint8_t { kNone = 0, kOne = 1, kTwo = 2, kInfinity = 3 };

/// The largest block of which a norm is computed as a whole. Part of what fixes the bits.
constexpr size_t kNormBlock = 4096;
constexpr size_t kNormLanes = 32;

struct BlockNorm {
  double part = 0;  // the sum of magnitudes or of squares, or the largest magnitude; NaN if any is
  bool finite = true;  // whether all elements are
};

/// The larger one; NaN wins.
FC_HD double larger(double a, double b) { return a != a ? a : b > a || b != b ? b : a; }

/// What two parts come to; zero changes nothing.
FC_HD double joined(NormKind kind, double part, double other) {
  return kind == NormKind::kInfinity ? larger(part, other) : add_rn(part, other);
}

/// The norm of a whole list from all its parts, joined.
FC_HD double norm_of_sum(NormKind kind, double sum) {
  return kind == NormKind::kTwo ? sqrt_rn(sum) : sum;
}

}  // namespace fastcomm
