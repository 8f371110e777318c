// all_gather: every rank gets every rank's bytes, in one output per rank.
//
// AllGatherOneShot, for small messages. Cost: 1 wait.
//   step 0   copy the input to this rank's payload slot
//   step 1   copy every peer's payload slot out, and the input to this rank's own output
//
// AllGatherPipelined over blocks b = 0 .. B-1 of each rank's input. Cost: B + 1 waits; N bytes
// staged, (n-1) N read from peers.
//   step 0   nothing (see all_reduce.h)
//   step k   stage block k-1, and copy it to this rank's output; copy block k-2 of every peer out
//
// Slot reuse: as in all_reduce.h, a stage slot written in step k is read in step k+1 and written
// again in step k+2. An output may be the input of its own rank.
#pragma once

#include "coll/plan.h"
#include "coll/schedule.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct AllGatherArgs {
  const PeerView& peers;  // outlives the schedule
  ScratchLayout layout;
  const char* input;
  uint64_t bytes;  // of each rank
  uint64_t block;  // bytes per step of the pipelined schedule
  uint64_t sequence;
  char* outputs[kMaxRanks] = {};
};

struct AllGatherOneShot {
  AllGatherArgs args;

  uint64_t payload_bytes() const { return args.bytes; }
  uint32_t steps() const { return 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, args.peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    const PeerView& peers = args.peers;
    const uint64_t slot = args.layout.payload(args.sequence, args.bytes);
    if (step == 0) {
      executor.stage_span(peers.scratch[peers.rank] + slot, args.input, args.bytes);
      return;
    }
    for (int hop = 0; hop < peers.size; ++hop) {
      const int owner = (peers.rank + hop) % peers.size;
      const char* source = owner == peers.rank ? args.input : peers.scratch[owner] + slot;
      executor.copy_span(args.outputs[owner], source, args.bytes);
    }
  }
};

struct AllGatherPipelined {
  AllGatherArgs args;

  uint64_t blocks() const { return ceil_div(args.bytes, args.block); }
  uint64_t payload_bytes() const { return kInBlocks; }
  uint32_t steps() const { return static_cast<uint32_t>(blocks()) + 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, args.peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    const PeerView& peers = args.peers;
    if (step >= 1) {
      const uint64_t b = step - 1;
      const Span block = cut(args.bytes, args.block, b);
      const char* source = args.input + block.first;
      executor.stage_span(peers.scratch[peers.rank] + stage_at(b), source, block.count);
      executor.copy_span(args.outputs[peers.rank] + block.first, source, block.count);
    }
    if (step >= 2) {
      const uint64_t b = step - 2;
      const Span block = cut(args.bytes, args.block, b);
      for (int hop = 1; hop < peers.size; ++hop) {
        const int owner = (peers.rank + hop) % peers.size;
        executor.copy_span(args.outputs[owner] + block.first, peers.scratch[owner] + stage_at(b),
                           block.count);
      }
    }
  }

 private:
  uint64_t stage_at(uint64_t b) const {
    return args.layout.stage(args.sequence * blocks() + b, smaller(args.block, args.bytes));
  }
};

}  // namespace fastcomm
