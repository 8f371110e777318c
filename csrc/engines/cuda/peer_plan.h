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
//   gather           its input           the root pulls all
//   broadcast        the root its buffer pulls the root's
//   scatter          the root a part     pulls its part
//                    for each
//   all_to_all       a part for each     pulls its part of all
//
// * Where results are pushed; else into its own one, and who gets them fetches every rank's slice: where all
// windows lie in one memory, as the host's, each is written there once.
//
// Sums have the order of the fixed tree over the ranks, whatever the rounds and slices.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/call.h"
#include "engines/cuda/meeting.h"
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

/// What one rank does between the two meetings of a round, and around them.
struct PeerRound {
  std::vector<CopySegment> stage;  // before the first
  std::vector<CopySegment> pull;
  std::vector<const void*> sources;  // of a reduction, one a rank; none: nothing to reduce
  std::vector<void*> destinations;
  uint64_t count = 0;              // elements of it
  std::vector<CopySegment> fetch;  // after the second
};

/// Rounds of an operation; equal on all ranks. Raises Error(kUnsupported): an operation without a
/// plan; (kInvalidArgument): areas too small for one element of each part.
uint64_t number_of_rounds(const Call& call, const PeerAreas& areas);

PeerRound round_of(const Call& call, const PeerAreas& areas, uint64_t round);

/// Whether an operation is done in one step, by slots of so many bytes: the same on all ranks. Each stages in its
/// slot what it gives; all meet; each pulls or reduces what it gets, straight into its results.
bool is_short(const Call& call, int size, uint64_t slot_bytes);

/// That step. `slots.in` are the slots, of `slots.bytes`; `slots.out` is not used, nor is `fetch`.
PeerRound short_round_of(const Call& call, const PeerAreas& slots);

/// Where the operation's results lie on this rank.
std::vector<DeviceResult> results_of(const Call& call, int rank);

}  // namespace fastcomm
