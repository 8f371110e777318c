// The reductions without kernels in kernels/cuda/multi_reduce.h, over n sources in the order of the
// same tree: MIN, MAX, PRODUCT, PREMUL_SUM, BAND, BOR and BXOR of every type for which they make
// sense, and SUM and AVG of uint16, uint32 and uint64.
//
// The bits are those of the CPU's loops (kernels/reduce_cpu.h), except for NaN payloads of sums and
// products.
#pragma once

#include "kernels/channel.h"
#include "kernels/cuda/combine_spec.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// Enqueues the reduction of `count` segments on the current device, as launch_multi_reduce does:
/// the same segments, the same channel, the same errors.
void launch_multi_combine(const ReduceSegment* segments, int count, const CombineSpec& spec,
                          cudaStream_t stream, const ChannelState* channel = nullptr);

/// Raises the Error with which a launch would refuse this, for any segments.
void check_multi_combine(const CombineSpec& spec);

/// Loads the kernels (load_multi_copy).
void load_multi_combine();

}  // namespace fastcomm
