// What a fused gradient reduction does besides summing, on the CPU: conversions between the types of
// gradients and of the wire, and norms. One set of loops per instruction set (kernels/isa.h).
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

  double part[kNormPieces][kCount];  // of the pieces so far: sums; in [0] the largest but for NaNs
  uint32_t pieces = 0;               // how many there are; kInfinity: 1, if any
  double zero[kCount] = {};          // NaN where an element was not finite, if `looked`
  bool looked = false;  // else part is not finite where an element was not: it cannot overflow
  bool nan = false;     // kInfinity: whether an element was NaN
};

/// Adds the next `count` elements of a block: a multiple of kNormPiece, but for the last ones.
using NormFunction = void (*)(NormLanes& lanes, const void* data, size_t count);

/// The function for a floating-point type. With kNone it looks for what is not finite only. Raises
/// Error(kUnsupported) for other types.
NormFunction norm_function(DType dtype, NormKind kind);

/// All lanes joined, which uses them up.
BlockNorm block_norm(NormLanes& lanes, NormKind kind);

/// Converts `count` elements, to nearest even. The memories are the same, at equal positions, or apart.
using ConvertFunction = void (*)(void* to, const void* from, size_t count);

/// Between fp32, fp16 and bf16, or from a type to itself. Raises Error(kUnsupported) for others.
ConvertFunction convert_function(DType to, DType from);

/// Rounds from[i] + residual[i], and leaves in residual[i] what that takes away, which is exact; zero
/// where the result is not finite.
using FeedbackFunction = void (*)(void* to, const float* from, float* residual, size_t count);

/// To fp16 or bf16. Raises Error(kUnsupported) for others.
FeedbackFunction feedback_function(DType to);

}  // namespace fastcomm
