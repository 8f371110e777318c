// broadcast: every rank gets the root's bytes.
//
// BroadcastOneShot, for small messages. Cost: 1 wait.
//   step 0   root: copy to its payload slot
//   step 1   others: copy the root's payload slot out
//
// BroadcastPipelined over blocks b = 0 .. B-1. Cost: B + 1 waits; N bytes staged by the root, N
// read by each other rank.
//   step 0   nothing (see all_reduce.h)
//   step k   root: stage block k-1           others: copy block k-2 out
//
// Slot reuse. Block b lies in stage slot b mod 2; the others read it in step b+2, and the root
// writes the slot again in step b+3, after a wait for all to have finished step b+2. From step 2 on
// the others wait for the root alone; step 1 is for all, so that every header is read.
#pragma once

#include "coll/plan.h"
#include "coll/schedule.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct BroadcastArgs {
  const PeerView& peers;  // outlives the schedule
  ScratchLayout layout;
  char* data;
  uint64_t bytes;
  uint64_t block;  // bytes per step of the pipelined schedule
  int root;
  uint64_t sequence;

  bool is_root() const { return peers.rank == root; }
};

struct BroadcastOneShot {
  BroadcastArgs args;

  uint64_t payload_bytes() const { return args.bytes; }
  uint32_t steps() const { return 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, args.peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    char* slot = args.peers.scratch[args.root] + args.layout.payload(args.sequence, args.bytes);
    if (step == 0 && args.is_root()) executor.stage_span(slot, args.data, args.bytes);
    if (step == 1 && !args.is_root()) executor.copy_span(args.data, slot, args.bytes);
  }
};

struct BroadcastPipelined {
  BroadcastArgs args;

  uint64_t blocks() const { return ceil_div(args.bytes, args.block); }
  uint64_t payload_bytes() const { return kInBlocks; }
  uint32_t steps() const { return static_cast<uint32_t>(blocks()) + 2; }
  /// All ranks except the root wait for it alone, if that is enough.
  WaitFor wait_for(uint32_t step) const {
    return step == 1 || args.is_root() ? WaitFor{0, args.peers.size} : WaitFor{args.root, 1};
  }

  void run(CpuExecutor& executor, uint32_t step) const {
    const bool is_root = args.is_root();
    if (step < (is_root ? 1u : 2u)) return;
    const uint64_t b = step - (is_root ? 1 : 2);
    const Span block = cut(args.bytes, args.block, b);
    if (block.count == 0) return;
    char* slot = args.peers.scratch[args.root] +
                 args.layout.stage(args.sequence * blocks() + b, smaller(args.block, args.bytes));
    char* data = args.data + block.first;
    if (is_root) {
      executor.stage_span(slot, data, block.count);
    } else {
      executor.copy_span(data, slot, block.count);
    }
  }
};

}  // namespace fastcomm
