// N-source reduction on CUDA: many tensors by one kernel, each summed over n sources in the order
// of the fixed tree, with an epilogue, into one or several destinations.
//
//   out = cast(sum / divisor * scale)      in the accumulator of the input's type (core/numeric.h)
//
// Rounded once, at the cast. Integers and bool have no scale. The table of tensors travels in the
// kernel's parameters (kernels/cuda/multi_copy.h).
#pragma once

#include "kernels/channel.h"
#include "kernels/cuda/reduce_spec.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// Most tensors per launch, for that number of sources and destinations.
int max_reduce_segments(int num_sources, int num_destinations);

/// Enqueues the reduction of `count` segments on the current device: one kernel per
/// max_reduce_segments of them, none if there is nothing to reduce. If the channel has failed by
/// then, nothing is reduced. The segments and their arrays of pointers may be freed once it
/// returns. Raises Error: no kernel for these types (kUnsupported), numbers out of range or memory
/// that is not aligned to its elements (kInvalidArgument), a failed launch (kSystem).
void launch_multi_reduce(const ReduceSegment* segments, int count, const ReduceSpec& spec,
                         cudaStream_t stream, const ChannelState* channel = nullptr);

/// Raises the Error with which a launch would refuse this, for any segments.
void check_multi_reduce(const ReduceSpec& spec);

/// Loads the kernels for that number of sources that do not convert (load_multi_copy).
void load_multi_reduce(int num_sources);
/// Loads the kernel between two types, if there is one.
void load_conversion(DType in, DType out);

}  // namespace fastcomm
