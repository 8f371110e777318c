// The reductions that kernels/cuda/multi_reduce.h has no kernels for, over n sources in the order of the
// same tree: MIN, MAX, PRODUCT, PREMUL_SUM, BAND, BOR and BXOR of every type that they make sense for,
// and SUM and AVG of uint16, uint32 and uint64.
//
// With the bits of the CPU's loops (kernels/reduce_cpu.h), but for NaN payloads of sums and products.
#pragma once

#include "core/types.h"
#include "kernels/channel.h"
#include "kernels/cuda/multi_reduce.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

struct CombineSpec {
  DType dtype;
  ReduceOp op;
  int num_sources;       // 1 to kMaxReduceSources; AVG divides by it
  int num_destinations;  // 1 to kMaxReduceSources
  double factor = 1;  // of PREMUL_SUM: every source is multiplied by it, as the accumulator's type
};

/// Whether such a reduction is multi_reduce's; for those that are neither's see why_no_reduction.
constexpr bool is_of_multi_reduce(DType dtype, ReduceOp op) {
  return has_cuda_kernel(dtype) && (op == ReduceOp::kSum || op == ReduceOp::kAvg);
}

/// The same reduction, under the one name that kernels know it by: where the sign does not matter, the
/// unsigned type's; AVG as a SUM with a divisor.
CombineSpec as_kernels_know(CombineSpec spec);

/// Enqueues the reduction of `count` segments on the current device, as launch_multi_reduce does:
/// the same segments, the same channel, the same errors.
void launch_multi_combine(const ReduceSegment* segments, int count, const CombineSpec& spec,
                          cudaStream_t stream, const ChannelState* channel = nullptr);

/// Raises the Error with which a launch would refuse this, whatever its segments.
void check_multi_combine(const CombineSpec& spec);

/// Loads the kernels (load_multi_copy).
void load_multi_combine();

}  // namespace fastcomm
