// Meetings of a group's ranks on their devices: a kernel of one block on each, before and after the
// kernels that use each other's windows.
//
//   say      this rank's call, if the meeting opens an operation, and then a flag, to each peer, in
//            that peer's window: each rank polls its own memory
//   wait     for each peer's flag, bounded by the device's clock and the host's abort word
//   compare  each peer's call, in a meeting that opens
//   record   the failure, for the host, and that this rank has given up, for the peers
//
// One block per rank waits, for any operation, so a device always has room for it; kernels with the
// data never wait. A channel is one stream's: two streams have lines of their own and do not wait
// for each other. All counters live on the device and advance there, so a captured graph counts on
// at every replay.
//
// Memory ordering. In a stream, a kernel comes after the one before it. In a meeting:
//   say -> wait   a thread writes the call and then stores the flag with release, which also covers
//                 writes of the stream's earlier kernels (they are over: causality order is
//                 cumulative); the peer's thread loads it with acquire and reads the call; the end
//                 of the kernel makes it known to the kernels after it.
//   the line is written again two meetings later, since there are two of them in turn; its writer
//   reaches that meeting after the one in between, for which the reader has stored its flag after
//   it had read the line.
// So two meetings order an operation: its work may read the peers' writes to their windows from
// before the opening meeting; anything after the closing one may overwrite memory that peers have
// read. An operation of one launch has one meeting (engines/cuda/short.h).
//
// Failure. The first one is recorded and stays: later meetings of the channel return at once, and
// peers find out when they look at their own lines, with the clock. Nobody blocks on the host, so
// the results of work after the failure are overwritten with NaN (launch_spoil).
//
// Cost: one launch, size - 1 flags written across links, and the time of the slowest flag.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/call_header.h"
#include "core/types.h"
#include "engines/cuda/ends.h"
#include "engines/cuda/meeting_place.h"
#include "kernels/channel.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

/// Enqueues a meeting that opens an operation. Raises Error(kSystem).
void launch_opening(const MeetingPlace& place, const WaitBounds& bounds, const CallHeader& call,
                    cudaStream_t stream);

/// Enqueues the meeting that closes it.
void launch_closing(const MeetingPlace& place, const WaitBounds& bounds, const CallHeader& call,
                    cudaStream_t stream);

/// launch_opening, and then looks up the ends, at most kMostEnds, in their order.
void launch_finding(const MeetingPlace& place, const EndsPlace& ends_place,
                    const std::vector<PeerEnd>& ends, const WaitBounds& bounds,
                    const CallHeader& call, cudaStream_t stream);

/// A result of an operation, in memory of this device.
struct DeviceResult {
  void* memory;
  uint64_t count;  // elements
};

/// Enqueues a kernel that overwrites floating-point results with NaN if the channel has failed. For
/// other types it does nothing: they have none.
void launch_spoil(const MeetingPlace& place, DType dtype, const std::vector<DeviceResult>& results,
                  cudaStream_t stream);

/// The same for memory of any floating-point type, `count` in units of 16 bits: all its bits are
/// set.
void launch_spoil_of_halves(const MeetingPlace& place, const std::vector<DeviceResult>& results,
                            cudaStream_t stream);

/// Loads the kernels: loading one while another one waits would deadlock. Raises Error(kSystem).
void load_meeting_kernels();

}  // namespace fastcomm
