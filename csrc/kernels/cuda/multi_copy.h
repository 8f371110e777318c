// Batched copy on CUDA: many pieces of memory by one kernel.
//
// The table of pieces travels in the kernel's parameters, so a launch allocates nothing, needs no
// copy before it, and can be captured in a graph. Data moves in packs of 16 bytes; if the ends of a
// piece cannot be aligned to one at once, each pack takes two loads.
#pragma once

#include <cstdint>

#include "kernels/channel.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// Most pieces per launch.
constexpr int kMaxCopySegments = 1024;

/// `bytes` from `src` to `dst`, both reachable from the launching device, not overlapping.
struct CopySegment {
  void* dst;
  const void* src;
  uint64_t bytes;
};

/// Enqueues the copy of `count` segments on the current device: one kernel per kMaxCopySegments of
/// them, none if there is nothing to copy. If the channel has failed by then, nothing is copied.
/// `segments` may be freed once it returns. Raises Error: a negative count (kInvalidArgument), a
/// failed launch (kSystem).
void launch_multi_copy(const CopySegment* segments, int count, cudaStream_t stream,
                       const ChannelState* channel = nullptr);

/// The same in one launch, for sources that only the device knows: `sources[i]` is that of segment
/// i, in memory of the device, written by an earlier kernel of the stream; the sources in
/// `segments` are ignored. No segment is empty, and there are at most kMaxIndirectCopies.
constexpr int kMaxIndirectCopies = 64;
void launch_indirect_copy(const CopySegment* segments, int count, const uint64_t* sources,
                          cudaStream_t stream, const ChannelState* channel);

/// Loads the kernels for the current device. Loading may wait for the device to be idle, so it must
/// come before any kernel that waits for other processes. Raises Error(kSystem).
void load_multi_copy();

}  // namespace fastcomm
