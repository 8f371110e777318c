// Parameters of a batched reduction: its tensors, types and numbers (kernels/cuda/multi_reduce.h).
#pragma once

#include <cstdint>

#include "core/types.h"

namespace fastcomm {

constexpr int kMaxReduceSources = 16;

/// `count` elements of every source. A destination may be a source, at equal positions; nothing
/// else may overlap. All memory is reachable from the launching device.
struct ReduceSegment {
  const void* const* sources;  // num_sources, in the order of the ranks
  void* const* destinations;   // num_destinations
  uint64_t count;
};

struct ReduceSpec {
  DType in;
  DType out;             // same as `in`, or any of float32, float16, bfloat16 if `in` is one
  int num_sources;       // 1 to kMaxReduceSources
  int num_destinations;  // 1 to kMaxReduceSources
  int divisor = 1;
  double scale = 1;  // as the accumulator's type; exactly 1: not multiplied
};

}  // namespace fastcomm
