// reduce_scatter: every rank gives a part to each rank, and gets the sum of the parts for itself,
// in the order of the fixed tree.
//
// ReduceScatterOneShot, for small messages. Cost: 1 wait; (n-1) N bytes staged, as many read from
// peers, for parts of N bytes.
//   step 0   copy the peers' parts to this rank's payload slot
//   step 1   reduce this rank's part of all payload slots into the output
//
// ReduceScatterPipelined over blocks b = 0 .. B-1 of each part. Cost: B + 1 waits; the same bytes.
//   step 0   nothing (see all_reduce.h)
//   step k   stage block k-1 of the peers' parts; reduce block k-2 of its own into the output
//
// Slot reuse: as in all_reduce.h, a stage slot written in step k is read in step k+1 and written
// again in step k+2, whose wait ensures that all peers have finished step k+1.
//
// The output may be this rank's own part: it is read and written at equal positions. It overlaps no
// other.
#pragma once

#include "coll/plan.h"
#include "coll/schedule.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct ReduceScatterArgs {
  const PeerView& peers;  // outlives the schedule
  ScratchLayout layout;
  char* output;
  uint64_t bytes;  // of a part
  uint64_t block;  // bytes of a part per step of the pipelined schedule; `size` of them fit a slot
  uint32_t element_size;
  uint64_t sequence;  // of the operation
  const char* inputs[kMaxRanks] = {};

  /// Stages `span` of every part but this rank's in `slot`, the spans `stride` bytes apart.
  void stage(CpuExecutor& executor, char* slot, const Span& span, uint64_t stride) const {
    for (int owner = 0; owner < peers.size; ++owner) {
      if (owner == peers.rank) continue;
      executor.stage_span(slot + static_cast<uint64_t>(owner) * stride, inputs[owner] + span.first,
                          span.count);
    }
  }

  /// Reduces `span` of this rank's part, out of `slot`, an offset in the peers' scratch.
  void reduce(CpuExecutor& executor, uint64_t slot, const Span& span, uint64_t stride) const {
    const auto index = static_cast<uint64_t>(peers.rank);
    executor.reduce_span(
        output + span.first, nullptr,
        [&](int peer) -> const char* {
          return peer == peers.rank ? inputs[peer] + span.first
                                    : peers.scratch[peer] + slot + index * stride;
        },
        span.count / element_size, element_size);
  }
};

struct ReduceScatterOneShot {
  ReduceScatterArgs args;

  uint64_t payload_bytes() const { return args.bytes * static_cast<uint64_t>(args.peers.size); }
  uint32_t steps() const { return 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, args.peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    const uint64_t slot = args.layout.payload(args.sequence, payload_bytes());
    const Span all{0, args.bytes};
    if (step == 0) {
      args.stage(executor, args.peers.scratch[args.peers.rank] + slot, all, args.bytes);
    } else {
      args.reduce(executor, slot, all, args.bytes);
    }
  }
};

struct ReduceScatterPipelined {
  ReduceScatterArgs args;

  uint64_t blocks() const { return ceil_div(args.bytes, args.block); }
  uint64_t payload_bytes() const { return kInBlocks; }
  uint32_t steps() const { return static_cast<uint32_t>(blocks()) + 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, args.peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    if (step >= 1) {
      const uint64_t b = step - 1;
      args.stage(executor, args.peers.scratch[args.peers.rank] + stage_at(b),
                 cut(args.bytes, args.block, b), stride());
    }
    if (step >= 2) {
      const uint64_t b = step - 2;
      args.reduce(executor, stage_at(b), cut(args.bytes, args.block, b), stride());
    }
  }

 private:
  /// Bytes between the spans of consecutive parts in a block.
  uint64_t stride() const {
    return round_up(smaller(args.block, args.bytes), ScratchLayout::kSlotAlign);
  }
  uint64_t stage_at(uint64_t b) const {
    return args.layout.stage(args.sequence * blocks() + b,
                             stride() * static_cast<uint64_t>(args.peers.size));
  }
};

}  // namespace fastcomm
