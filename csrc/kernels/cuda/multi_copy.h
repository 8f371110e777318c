// Batched copy on CUDA: many pieces of memory by one kernel.
//
// The table of pieces travels in the kernel's parameters, so a launch allocates nothing, copies
// nothing before, and can be captured in a graph. Data moves in packs of 16 bytes; where the ends of
// a piece cannot be aligned to one at once, each pack takes two loads.
#pragma once

#include <cstdint>

#include "kernels/channel.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// At most this many pieces a launch.
constexpr int kMaxCopySegments = 1024;

/// `bytes` from `src` to `dst`, both reachable from the launching device, not overlapping.
struct CopySegment {
  void* dst;
  const void* src;
  uint64_t bytes;
};

/// Enqueues the copy of `count` segments on the current device: one kernel for every
/// kMaxCopySegments of them, none if there is nothing to copy. With a channel that has failed by then
/// nothing is copied. `segments` may go when it returns.
/// Raises Error: a negative count (kInvalidArgument), a failed launch (kSystem).
void launch_multi_copy(const CopySegment* segments, int count, cudaStream_t stream,
                       const ChannelState* channel = nullptr);

/// The same in one launch, where each source is known to the device alone: `sources[i]` is that of segment i, in
/// memory of the device, written by an earlier kernel of the stream; what `segments` say of sources is
/// ignored. No segment is empty, and there are at most kMaxIndirectCopies.
constexpr int kMaxIndirectCopies = 64;
void launch_indirect_copy(const CopySegment* segments, int count, const uint64_t* sources,
                          cudaStream_t stream, const ChannelState* channel);

/// Loads the kernels for the current device. Loading may wait for the device to be idle, so it is done
/// before there are kernels that wait for other processes. Raises Error(kSystem).
void load_multi_copy();

}  // namespace fastcomm
