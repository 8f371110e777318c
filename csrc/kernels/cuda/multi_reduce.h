// N-source reduction on CUDA: many tensors by one kernel, each summed over n sources in the order of
// the fixed tree, with an epilogue, into one or several destinations.
//
//   out = cast(sum / divisor * scale)      in the accumulator of the input's type (core/numeric.h)
//
// Rounded once, at the cast. Integers and bool know no scale. The table of tensors travels in the
// kernel's parameters (kernels/cuda/multi_copy.h).
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/channel.h"
#include "kernels/cuda_api.h"

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
  DType out;  // the same as `in`, or any of float32, float16 and bfloat16 where `in` is one of them
  int num_sources;       // 1 to kMaxReduceSources
  int num_destinations;  // 1 to kMaxReduceSources
  int divisor = 1;
  double scale = 1;  // as the accumulator's type; exactly 1: not multiplied
};

/// At most this many tensors a launch, for that many sources and destinations.
int max_reduce_segments(int num_sources, int num_destinations);

/// Enqueues the reduction of `count` segments on the current device: one kernel for every
/// max_reduce_segments of them, none if there is nothing to reduce. With a channel that has failed by
/// then nothing is reduced. The segments and what they point to may go when it returns. Raises Error:
/// no kernel for these types (kUnsupported), numbers out of range or memory that is not aligned to
/// its elements (kInvalidArgument), a failed launch (kSystem).
void launch_multi_reduce(const ReduceSegment* segments, int count, const ReduceSpec& spec,
                         cudaStream_t stream, const ChannelState* channel = nullptr);

/// Raises the Error with which a launch would refuse this, whatever its segments.
void check_multi_reduce(const ReduceSpec& spec);

/// Loads the kernels of that many sources that do not convert (load_multi_copy).
void load_multi_reduce(int num_sources);
/// Loads the kernel between two types, if there is one.
void load_conversion(DType in, DType out);

}  // namespace fastcomm
