// An operation between processes as rounds of copies and reductions, for one rank: what it stages in
// its own window, what it pulls out of the others' or reduces, and what it fetches out of its own.
// Arithmetic alone: engines/cuda/peer_collectives.h enqueues it.
//
// A window has for each channel an area for what peers read, "in", and one for what they write, "out".
// A message that does not fit into an area is done in rounds, part by part:
//
//   operation        stages              work of rank r                          fetches
//   all_reduce       its input           reduces slice r of all into all "out"s* everybody
//   reduce           its input           reduces slice r of all into the root's* the root
//   reduce_scatter   a part for each     reduces part r of all to its output
//   all_gather       its input           pulls all
//   gather_shards    its shards          pulls all, each to its places
//   gather           its input           the root pulls all
//   broadcast        the root its buffer pulls the root's
//   scatter          the root a part     pulls its part
//                    for each
//
// What is known in pairs alone, as the parts of all_to_all, is in engines/cuda/pair_plan.h.
//
// * Where results are pushed; else into its own "out", and the ranks that get results fetch every rank's slice:
// where all windows lie in one memory, as the host's, each slice is written there once.
//
// Where a rank's tensor lies in memory that its peers have mapped, it is not staged, or not fetched, and they
// use it where it is; that is known to their kernels alone (PeerRound::ends).
//
// Messages in pieces (Call::pieces) are gathered and scattered in place of being staged and fetched; all else is
// the same, and ranks that have theirs in one piece take part without knowing.
//
// Sums have the order of the fixed tree over the ranks, whatever the rounds and slices.
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
  bool pushes = true;  // results of a slice: into the "out" of all who get it; else they pull them
};

/// What a rank says of its own tensors, where kernels look up where peers have theirs (engines/cuda/ends.h): as
/// CallHeader::where and ::form.
struct OwnPlaces {
  bool finds = false;   // they do; equal on all ranks
  uint64_t given = 0;   // not 0: peers read it there, and it is not staged
  uint64_t result = 0;  // not 0: peers write it there, and it is not fetched
};

/// What one rank does between the two meetings of a round, and around them.
struct PeerRound {
  std::vector<CopySegment> stage;  // before the first
  std::vector<CopySegment> pull;
  std::vector<const void*> sources;  // of a reduction, one a rank; none: nothing to reduce
  std::vector<void*> destinations;
  uint64_t count = 0;              // elements of it
  std::vector<CopySegment> fetch;  // after the second
  // Of a message in pieces, in place of `stage`, `pull` and `fetch`. They name the call's pieces.
  std::vector<PiecesSpan> gather;
  std::vector<PiecesSpan> pull_shards;  // of each other rank
  std::vector<PiecesSpan> scatter;
  // Where kernels look it up, the sources of `pull`, or `sources` and then `destinations`: those hold what it
  // would be in windows.
  std::vector<PeerEnd> ends;
};

/// Rounds of an operation; equal on all ranks. Raises Error(kUnsupported): an operation without a
/// plan; (kInvalidArgument): areas too small for one element of each part.
uint64_t number_of_rounds(const Call& call, const PeerAreas& areas);

/// `own.finds` only where areas.pushes.
PeerRound round_of(const Call& call, const PeerAreas& areas, uint64_t round,
                   const OwnPlaces& own = {});

/// Whether ranks do more than meet.
bool moves_data(const Call& call);

/// Whether what each rank gives lies where it has its places for it (Call::shards).
bool gathers_shards(const Call& call);

/// A rank's tensor as its peers use it; without memory: they do not, or there is none.
struct PeerTensor {
  const void* memory;
  uint64_t bytes;
};
/// What it gives; if in parts, only where each starts at the end of the one before, at a pack.
PeerTensor given_of(const Call& call, int rank, int size);
/// What peers write.
PeerTensor shared_result_of(const Call& call, int rank);

/// Whether an operation is done in one step, by slots of `slot_bytes`: the same on all ranks. Each stages what it
/// gives in its slot; all meet; each pulls or reduces what it gets, straight into its results.
bool is_short(const Call& call, int size, uint64_t slot_bytes);

/// That step. `slots.in` are the slots, of `slots.bytes`; `slots.out` is not used, nor is `fetch`.
PeerRound short_round_of(const Call& call, const PeerAreas& slots);

/// Where the operation's results lie on this rank; of a message in pieces none are named.
std::vector<DeviceResult> results_of(const Call& call, int rank);

}  // namespace fastcomm
