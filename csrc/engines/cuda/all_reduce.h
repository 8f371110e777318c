// all_reduce on CUDA: the schedules of coll/all_reduce.h, one channel a block.
//
// The message is cut into one contiguous part a channel. A channel works on its part alone, with
// its own flag (PeerView::flag(rank, channel)), its own slots in scratch (channel * layout.total()
// behind the start of scratch) and its own ChannelState; so blocks never wait for each other. Every
// rank must launch the same operations with the same number of channels, one operation of a
// communicator at a time.
//
// 2 to 16 ranks. Up to 8 have kernels of their own for fp32, fp16 and bf16; the rest has one kernel a
// type that reads the number of ranks at run time. Both give the same bits.
#pragma once

#include <cstdint>

#include "coll/plan.h"
#include "core/types.h"
#include "kernels/channel.h"
#include "kernels/cuda_api.h"
#include "transport/peer_view.h"

namespace fastcomm {

constexpr int kMaxCudaRanks = 16;
constexpr int kCudaThreads = 512;  // a block, at most

/// What every rank's kernel gets. Pointers of `peers` and `states` are device pointers, all of them
/// reachable from this device.
struct CudaAllReduceArgs {
  PeerView peers;
  ScratchLayout layout;  // of one channel; origin is where channel 0 begins
  ChannelState* states;  // one a channel, in this device's memory
  WaitRecord* records;   // one a channel, in host memory
  WaitBounds bounds;
  const char* input;  // aligned to an element; may be `output`, or else must not overlap it
  char* output;
  uint64_t count;        // elements
  uint64_t block_bytes;  // of a channel, a step of the two-shot schedule; a multiple of a line
  bool average;
};

struct CudaLaunch {
  DType dtype;
  bool one_shot;
  int channels;      // blocks of the grid; equal on all ranks
  int max_channels;  // what the ranks agreed on: the least of max_all_reduce_channels
  int threads;       // a block
};

/// Enqueues the operation; does not wait for it. How it ended is in `states` and `records`.
/// Raises Error: no kernel for this dtype or size of group (kUnsupported); more channels than can
/// be resident, slots too small or misaligned memory (kInvalidArgument); a failed launch (kSystem).
void launch_all_reduce(const CudaAllReduceArgs& args, const CudaLaunch& launch,
                       cudaStream_t stream);

/// The largest number of channels whose blocks of `threads` threads are all resident at once on the
/// current device, for every kernel of `ranks` ranks, when `sharing` ranks run on that device.
/// Ranks agree on the minimum. Loads the kernels: loading one while another waits would deadlock,
/// so a communicator calls this when it is set up. Raises Error(kSystem).
int max_all_reduce_channels(int ranks, int threads, int sharing);

}  // namespace fastcomm
