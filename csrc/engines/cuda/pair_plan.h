// Messages between all pairs of ranks as rounds of copies, for one rank (engines/cuda/peer_plan.h): it stages in
// its window a part for each peer, and pulls its own part out of each peer's.
//
// An area has a share for each rank, whatever the sizes: no rank knows how long its peers' other messages are,
// nor where they would start. A message longer than a share takes several rounds. Where every peer gets the same,
// all ranks share the area, and it is staged once.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/call.h"
#include "engines/cuda/pairs.h"
#include "engines/cuda/peer_plan.h"

namespace fastcomm {

/// The operations that are done this way; Call::messages says what they move.
bool is_of_pairs(OpKind kind);

/// Whether all ranks know how many rounds each of them has, so that no meetings are left over: with two ranks,
/// and where every peer gets the same, and says how long it is.
bool knows_all_rounds(const Call& call, int size);

/// What the headers of a call's meeting say. Raises Error(kInvalidArgument): messages for another number of ranks,
/// sizes that only the sender knows, or that differ for what a rank sends itself; areas without room for a share of each rank.
PairSizes pair_sizes(const Call& call, const PeerAreas& areas);

/// For each of the rounds that `sizes.rounds` counts.
PeerRound round_of_pairs(const Call& call, const PeerAreas& areas, uint64_t round);

/// Where messages arrive.
std::vector<DeviceResult> results_of_pairs(const Call& call);

}  // namespace fastcomm
