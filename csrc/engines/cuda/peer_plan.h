// An operation between processes as rounds of copies and reductions, for one rank: it stages in its
// own window, pulls out of the others' or reduces them, and fetches out of its own. Arithmetic
// alone: engines/cuda/peer_collectives.h enqueues it.
//
// A window has for each channel an area that peers read, "in", and one that they write, "out". A
// message that does not fit into an area is done in rounds, part by part:
//
//   operation        stages              work of rank r                          fetches
//   all_reduce       its input           reduces slice r of all into all "out"s* everybody
//   reduce           its input           reduces slice r of all into the root's* the root
//   reduce_scatter   a part for each     reduces part r of all to its output
//   all_gather       its input           pulls all
//   gather_shards    its shards          pulls all, each to its places
//   gather           its input           the root pulls all
//   broadcast        the root its buffer pulls the root's
//     in slices      the root its buffer pulls slice r of the root's to its   all but the root,
//                                        own "out"                            from all "out"s
//   scatter          the root a part     pulls its part
//                    for each
//
// engines/cuda/pair_plan.h has operations whose sizes are known in pairs alone, such as all_to_all.
//
// * If results are pushed; else into its own "out", and the ranks that get results fetch every
// rank's slice: if all windows lie in one memory, such as the host's, each slice is written there
// once.
//
// A large broadcast goes in slices: the link out of the root carries the message twice, and not
// once for each other rank.
//
// A rank's tensor in memory that its peers have mapped is not staged, or not fetched: they use it
// in place. Only their kernels know that (PeerRound::ends).
//
// Messages in pieces (Call::pieces) are gathered and scattered instead of being staged and fetched;
// all else is the same, and ranks with messages in one piece take part without knowing.
//
// Links. The kernels take their segments one after the other. So a rank begins its pulls at the
// next rank, and its pushes at itself: in one order for all ranks, the link out of one device would
// serve them all while those of the others wait.
//
// Sums have the order of the fixed tree over the ranks, for any rounds and slices.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/call.h"
#include "engines/cuda/ends.h"
#include "engines/cuda/meeting.h"
#include "engines/cuda/pieces.h"
#include "kernels/cuda/multi_copy.h"

namespace fastcomm {

/// The areas of one channel in all windows, as this rank reaches them. Aligned to a line.
struct PeerAreas {
  int rank;
  int size;
  uint64_t bytes;  // of an area, a multiple of 256
  std::vector<char*> in;
  std::vector<char*> out;
  bool pushes = true;  // a slice's results go into the "out" of all receivers; else those pull
  uint64_t slices_from = 0;  // bytes of a broadcast from which it goes in slices; 0: none does
};

/// The rank that is `step` places after this one, in a circle.
inline int after(const PeerAreas& areas, int step) { return (areas.rank + step) % areas.size; }

/// A rank's statement about its own tensors, if kernels look up those of peers
/// (engines/cuda/ends.h): as CallHeader::where and ::form.
struct OwnTensors {
  bool finds = false;   // kernels look them up; equal on all ranks
  uint64_t given = 0;   // not 0: peers read it there, and it is not staged
  uint64_t result = 0;  // not 0: peers write it there, and it is not fetched
};

/// One rank's work between the two meetings of a round, and around them.
struct PeerRound {
  std::vector<CopySegment> stage;  // before the first
  std::vector<CopySegment> pull;
  std::vector<const void*> sources;  // of a reduction, one per rank; none: nothing to reduce
  std::vector<void*> destinations;
  uint64_t count = 0;              // elements of it
  std::vector<CopySegment> fetch;  // after the second, out of any rank's "out"
  // Of a message in pieces, instead of `stage`, `pull` and `fetch`. They name the call's pieces.
  std::vector<PiecesSpan> gather;
  std::vector<PiecesSpan> pull_shards;  // of each other rank
  std::vector<PiecesSpan> scatter;
  // For kernels that look them up: the sources of `pull`, or `sources` and then `destinations`,
  // which hold the places in windows.
  std::vector<PeerEnd> ends;
};

/// Rounds of an operation; equal on all ranks. Raises Error: an operation without a plan
/// (kUnsupported); areas too small for one element of each part (kInvalidArgument).
uint64_t number_of_rounds(const Call& call, const PeerAreas& areas);

/// `own.finds` requires areas.pushes.
PeerRound round_of(const Call& call, const PeerAreas& areas, uint64_t round,
                   const OwnTensors& own = {});

/// True if ranks do more than meet.
bool moves_data(const Call& call);

/// True if every rank has places for the data that each rank gives (Call::shards).
bool gathers_shards(const Call& call);

/// A rank's tensor as its peers use it; without memory if they do not, or if there is none.
struct PeerTensor {
  const void* memory;
  uint64_t bytes;
};
/// The tensor that it gives; in parts only if each starts at the end of the one before, at a pack.
PeerTensor given_of(const Call& call, int rank, int size);
/// The tensor that peers write.
PeerTensor shared_result_of(const Call& call, int rank);

/// True if an operation is done in one step, by slots of `slot_bytes`: the same on all ranks. Each
/// stages its data in its slot; all meet; each pulls or reduces, straight into its results.
bool is_short(const Call& call, int size, uint64_t slot_bytes);

/// That step. `slots.in` are the slots, of `slots.bytes`; `slots.out` and `fetch` are not used.
PeerRound short_round_of(const Call& call, const PeerAreas& slots);

/// The operation's results on this rank; none for a message in pieces.
std::vector<DeviceResult> results_of(const Call& call, int rank);

}  // namespace fastcomm
