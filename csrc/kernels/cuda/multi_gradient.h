// Gradients on CUDA: many tensors reduced by one kernel as in multi_reduce.h, which also computes
// norms of its results. The bits are those of coll/fused_local.h on the CPU.
//
//   term    rounded to the type of the wire, if that is another one
//   sum     in the accumulator, in the order of the fixed tree; / divisor * scale
//   result  rounded to the wire's type, then widened to the gradient's
//   norm    of the results, in the order of kernels/norm.h
//
// One or two small kernels join the norms (kernels/cuda/gradient_norm.h). Everything stays on the
// device: nothing is allocated, nobody waits, and the tables travel in the kernels' parameters, so
// that a graph can capture it.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/cuda/gradient_norm.h"
#include "kernels/cuda/multi_reduce.h"
#include "kernels/cuda_api.h"
#include "kernels/norm.h"

namespace fastcomm {

struct GradientSegment {
  ReduceSegment memory;
  DType dtype;  // a floating-point type
  DType wire;   // the same, or float16 or bfloat16 for float32
};

struct GradientReduceSpec {
  int num_sources;           // 1 to kMaxReduceSources
  int num_destinations = 1;  // 0: nothing is written, norms are those of the one source
  int divisor = 1;
  double scale = 1;
  NormKind norm = NormKind::kTwo;
};

/// Device memory, aligned to BlockNorm, for the kernels' notes. Free again once the stream has
/// passed the call.
uint64_t gradient_scratch_bytes(const GradientSegment* segments, int count);

/// Enqueues the reduction of `count` segments on the current device: one kernel per pair of types,
/// or several if a table does not hold all, and those that join the norms. `segments` may be
/// freed once it returns. Raises Error like launch_multi_reduce.
void launch_multi_gradient(const GradientSegment* segments, int count,
                           const GradientReduceSpec& spec, void* scratch,
                           const NormResults& results, cudaStream_t stream);

/// Loads the kernels of one source (load_multi_copy).
void load_gradients_of_one();

}  // namespace fastcomm
