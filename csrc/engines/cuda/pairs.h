// Meetings of operations whose sizes are known in pairs: the sender and the receiver know a size,
// and no other rank does (coll/messages.h). all_to_all is one.
//
// The headers of the opening meeting tell each peer
//
//   CallHeader::where    bytes that are sent to it
//   CallHeader::form     bytes that are expected of it
//   CallHeader::balance  rounds that this rank's messages take
//
// Both ends of a pair compare the first two, so both notice a difference. A rank enqueues the
// rounds that it has messages for. No host knows how many the others have; devices do, after that
// meeting: the last kernel of the operation goes on meeting for the rounds that are left, without
// data. So all ranks have met equally often when it is over, and the next operation counts from
// there.
//
// Memory ordering: as in engines/cuda/meeting.h; each of these is one or several of its meetings.
// The number of rounds is written and read by kernels of one stream.
#pragma once

#include <cstdint>

#include "coll/messages.h"
#include "engines/cuda/meeting.h"

namespace fastcomm {

/// By rank; 0 for this rank.
struct PairSizes {
  uint64_t sent[kMaxDeviceRanks];
  uint64_t expected[kMaxDeviceRanks];
  uint64_t rounds;  // of this rank's messages, at least 1
};

/// The meeting that opens such an operation. Leaves the largest number of rounds of any rank in
/// `most`, in memory of the device. Raises Error(kSystem).
void launch_opening_of_pairs(const MeetingPlace& place, const WaitBounds& bounds,
                             const CallHeader& call, const PairSizes& sizes, uint64_t* most,
                             cudaStream_t stream);

/// The meetings that are left after `sizes.rounds` rounds.
void launch_rest_of_pairs(const MeetingPlace& place, const WaitBounds& bounds,
                          const CallHeader& call, const PairSizes& sizes, const uint64_t* most,
                          cudaStream_t stream);

/// Loads the kernels (load_meeting_kernels).
void load_pairs_kernels();

}  // namespace fastcomm
