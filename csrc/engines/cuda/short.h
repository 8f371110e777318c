// Operations between processes whose messages are short: one launch of one block, one meeting.
//
//   stage    data for peers into this rank's slot
//   meet     all ranks have staged, and have called the same (engines/cuda/meeting.h)
//   work     pulls or reduces, out of all slots straight into the results
//   spoil    instead, if the meeting has failed, or an earlier one: NaN into floating-point results
//
// One launch replaces five or six, and a rank waits once, with one block, as in any meeting. So
// there is no number of waiting blocks to keep within a device's capacity.
//
// Memory ordering. A window has two slots for each channel, used in turn; the device counts the
// turns.
//   stage -> work   by the meeting: the block's barrier is between its threads' stores and the
//                   flags that some of them store with release, and another one between the flags'
//                   loads with acquire and the threads' loads.
//   work -> stage   a slot is written again by the second operation after. Its owner reaches that
//                   one after the meeting of the operation in between, for which each peer has
//                   stored its flag after the end of the kernel that read the slot. Operations of
//                   several launches in between only add meetings.
//
// Cost: one launch, size - 1 flags written across links, one block's copy of the message into this
// rank's window and one block's loads out of the others'.
#pragma once

#include "coll/call.h"
#include "engines/cuda/meeting.h"
#include "engines/cuda/peer_plan.h"

namespace fastcomm {

/// The memory of a short operation.
struct ShortPlace {
  MeetingPlace meeting;
  uint64_t slot_bytes;  // from the first slot to the second; a multiple of 256
};

/// True if there is a kernel for such a reduction.
bool reduces_short(DType dtype, ReduceOp op);

/// Enqueues one; `round` is short_round_of(call, the first slots). Raises Error(kSystem).
void launch_short(const ShortPlace& place, const WaitBounds& bounds, const CallHeader& header,
                  const Call& call, const PeerRound& round, cudaStream_t stream);

/// Loads the kernels (load_meeting_kernels).
void load_short_kernels();

}  // namespace fastcomm
