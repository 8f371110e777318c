// The parts of a fused gradient reduction besides summing, on the CPU: conversions between the
// types of gradients and of the wire, and norms. One set of loops per instruction set
// (kernels/isa.h).
//
// A norm has the same bits on every machine (kernels/norm.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "kernels/norm.h"

namespace fastcomm {

/// The norm of the elements of a block so far.
struct NormLanes {
  static constexpr size_t kCount = kNormLanes;

  // sums of the pieces so far; in [0] the largest, except for NaNs
  double part[kNormPieces][kCount];
  uint32_t pieces = 0;       // pieces so far; kInfinity: 1, if any
  double zero[kCount] = {};  // NaN if an element was not finite, if `looked`
  bool looked = false;  // if false, part is not finite if an element was not: it cannot overflow
  bool nan = false;     // kInfinity: true if an element was NaN
};

/// Adds the next `count` elements of a block: a multiple of kNormPiece, except for the last ones.
using NormFunction = void (*)(NormLanes& lanes, const void* data, size_t count);

/// The function for a floating-point type. With kNone it only looks for elements that are not
/// finite. Raises Error(kUnsupported) for other types.
NormFunction norm_function(DType dtype, NormKind kind);

/// Joins all lanes, and uses them up.
BlockNorm block_norm(NormLanes& lanes, NormKind kind);

/// Converts `count` elements, to nearest even. The two memories are the same, or do not overlap.
using ConvertFunction = void (*)(void* to, const void* from, size_t count);

/// Between fp32, fp16 and bf16, or from a type to itself. Raises Error(kUnsupported) for others.
ConvertFunction convert_function(DType to, DType from);

/// Rounds from[i] + residual[i], and leaves the rounding error, which is exact, in residual[i];
/// zero if the result is not finite.
using FeedbackFunction = void (*)(void* to, const float* from, float* residual, size_t count);

/// To fp16 or bf16. Raises Error(kUnsupported) for others.
FeedbackFunction feedback_function(DType to);

}  // namespace fastcomm
