// all_reduce without staging, for buffers that lie in memory which every rank has mapped.
//
//   step 0   reduce this rank's slice of all buffers, and write the sum into all of them
//   step 1   nothing: its wait ensures that every rank has written every slice
//
// Cost: 1 wait; N bytes read and N written by each rank, (n-1)/n of both in peers' buffers. It runs
// after the wait in which all headers are read (engines/cpu/operation.cpp), since only they tell
// where the buffers are; that wait also ensures that every rank has entered the operation, hence
// that its buffer holds its input.
//
// Memory ordering. A slice is read and written by one rank only. Its inputs were written before
// their owners published step 0 of the preceding schedule, for which this rank has waited; its sums
// are visible to a peer after the wait of step 1. Nobody touches a peer's buffer after its own
// publication of step 0, so a buffer is its owner's alone once that wait is over.
//
// A rank that gives up before that wait is over does not know when its peers will have stopped
// writing to its buffer: the memory must not be used for anything else until they have left. Nor do
// they know when its user writes to it again: between the steps they check for a rank that gave up,
// and publish no sum of data that may have changed (Operation::find_quitter).
#pragma once

#include "coll/plan.h"
#include "coll/schedule.h"
#include "kernels/stage_copy.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct AllReduceDirect {
  const PeerView& peers;  // outlives the schedule
  uint64_t count;         // elements
  uint32_t element_size;  // bytes
  char* buffers[kMaxRanks];

  uint32_t steps() const { return 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    if (step != 0) return;
    const Span slice = slice_of(count, peers.size, peers.rank, kLineBytes / element_size);
    // The reduction itself writes the first two destinations. Further ones are copies of a piece
    // that is still in the cache. A piece of one or two ranks may be all of the slice.
    constexpr uint64_t kPieceBytes = 64 * 1024;
    const uint64_t piece = peers.size > 2 ? kPieceBytes / element_size : slice.count;
    for (uint64_t done = 0; done < slice.count; done += piece) {
      const uint64_t elements = smaller(piece, slice.count - done);
      const uint64_t at = (slice.first + done) * element_size;
      char* own = buffers[peers.rank] + at;
      executor.reduce_span(
          own, buffers[behind(1)] + at, [&](int peer) -> const char* { return buffers[peer] + at; },
          elements, element_size, kToTensor);
      for (int hop = 2; hop < peers.size; ++hop) {
        executor.stage_span(buffers[behind(hop)] + at, own, elements * element_size, kToTensor);
      }
    }
  }

 private:
  /// The rank `hop` places after this one: every rank starts at a different peer.
  int behind(int hop) const {
    const int peer = peers.rank + hop;
    return peer < peers.size ? peer : peer - peers.size;
  }
};

}  // namespace fastcomm
