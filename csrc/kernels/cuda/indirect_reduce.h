// One tensor of kernels/cuda/multi_reduce.h whose addresses only the device knows: an earlier
// kernel has written them into its memory (engines/cuda/ends.h).
#pragma once

#include <cstdint>

#include "kernels/channel.h"
#include "kernels/cuda/multi_reduce.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// Enqueues the reduction on the current device: one kernel, none if there is nothing to reduce.
/// `addresses`, in memory of the device, are those of the sources, then of the destinations; `like`
/// has the same alignment to packs as the memory there. Streams, the channel and errors as in
/// launch_multi_reduce.
void launch_indirect_reduce(const ReduceSegment& like, const uint64_t* addresses,
                            const ReduceSpec& spec, cudaStream_t stream,
                            const ChannelState* channel);

/// Loads the kernels for that number of sources (load_multi_copy).
void load_indirect_reduce(int num_sources);

}  // namespace fastcomm
