// Messages between all pairs of ranks as rounds of copies, for one rank (engines/cuda/peer_plan.h):
// it stages in its window a part for each peer, and pulls its own part out of each peer's.
//
// An area has a share for each rank, for any sizes: no rank knows the length of its peers' other
// messages, nor where they would start. A message longer than a share takes several rounds. If
// every peer gets the same, all ranks share the area, and it is staged once.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/call.h"
#include "engines/cuda/pairs.h"
#include "engines/cuda/peer_plan.h"

namespace fastcomm {

/// True for operations that are done this way; Call::messages holds their data.
bool is_of_pairs(OpKind kind);

/// True if all ranks know the number of rounds of each of them, so that no meetings are left over:
/// with two ranks, and if every peer gets the same, of stated length.
bool knows_all_rounds(const Call& call, int size);

/// The sizes in the headers of a call's meeting. Raises Error(kInvalidArgument): messages for
/// another number of ranks, sizes that only the sender knows, or that differ for a rank's message
/// to itself; areas without room for a share of each rank.
PairSizes pair_sizes(const Call& call, const PeerAreas& areas);

/// For each of the rounds that `sizes.rounds` counts.
PeerRound round_of_pairs(const Call& call, const PeerAreas& areas, uint64_t round);

/// Destinations of the messages.
std::vector<DeviceResult> results_of_pairs(const Call& call);

}  // namespace fastcomm
