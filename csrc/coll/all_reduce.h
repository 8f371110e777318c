// all_reduce: every rank gets the sum over ranks, in the order of the fixed tree.
//
// AllReduceOneShot, for small messages. Cost: 1 wait; N bytes staged, (n-1) N bytes read from
// peers.
//   step 0   copy the input to this rank's payload slot
//   step 1   reduce all payload slots into the output, and run the tail over it, if there is one
//
// AllReduceTwoShot, pipelined over blocks b = 0 .. B-1. Cost: B + 2 waits; (n-1)/n N bytes staged,
// (n-1)/n N read to reduce, (n-1)/n N read to copy out, N written.
//   step 0   nothing: its publication tells that this rank has left the previous operation
//   step k   stage block k-1: the slices that peers reduce, from the input to the stage slot
//            reduce block k-2: this rank's slice, own input and the peers' stage slots, into the
//                              output and the result slot
//            copy out block k-3: the peers' slices from their result slots to the output
//
// Slot reuse. The payload slot of operation s is not that of s-1; its owner writes it again in
// operation s+2 at the earliest, after it saw every rank publish step 0 of s+1, hence leave s. A
// stage slot written in step k is read by peers in step k+1 and written again in step k+2 at the
// earliest, whose wait ensures that all peers have finished step k+1; the same holds for a result
// slot one step later. An operation writes its stages after its step 0, so all ranks have left the
// previous operation.
//
// AllReduceOneShot with some tensors in memory that peers reach: a rank with such a tensor stages
// it only if another rank's turns out to lie elsewhere, in a step between the two. If all lie
// there, AllReduceDirect takes over.
//
// With a root this is reduce: the others write no output. Their slices go to the result slot alone,
// and the root copies them out.
//
// In place: input and output may be the same memory. The slices of a block that peers reduce are
// staged before anything is copied over them; this rank's own slice is read and written at equal
// positions.
#pragma once

#include <memory>

#include "coll/plan.h"
#include "coll/schedule.h"
#include "kernels/add_rms_norm_cpu.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct AllReduceArgs {
  const PeerView& peers;  // outlives the schedule
  ScratchLayout layout;
  const char* input;
  char* output;
  uint64_t count;         // elements
  uint32_t element_size;  // bytes
  uint64_t block;         // elements per step of the two-shot schedule; a slice must fit a slot
  uint64_t sequence;      // of the operation
  int root = -1;          // the rank that gets the sum; -1: every rank
  std::shared_ptr<AddRmsNorm> tail = nullptr;

  uint64_t bytes() const { return count * element_size; }

  bool wanted() const { return root < 0 || root == peers.rank; }
};

struct AllReduceOneShot {
  AllReduceArgs args;
  bool is_shared = false;    // peers reach this rank's tensor
  bool stages_late = false;  // known in step 1: peers reach some tensors, but not all

  uint64_t payload_bytes() const { return args.bytes(); }
  uint32_t steps() const { return stages_late ? 3 : 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, args.peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    const PeerView& peers = args.peers;
    const uint64_t slot = args.layout.payload(args.sequence, args.bytes());
    if (step + 1 < steps()) {
      if (is_shared == (step == 1)) {
        executor.stage_span(peers.scratch[peers.rank] + slot, args.input, args.bytes());
      }
    } else if (args.wanted()) {
      // This rank's source is the input: it may be the output too, at equal positions.
      const auto reduce = [&](uint64_t first, uint64_t count) {
        const uint64_t at = first * args.element_size;
        executor.reduce_span(
            args.output + at, nullptr,
            [&](int peer) -> const char* {
              return (peer == peers.rank ? args.input : peers.scratch[peer] + slot) + at;
            },
            count, args.element_size);
      };
      if (args.tail == nullptr) return reduce(0, args.count);
      args.tail->run_behind(reduce);
    }
  }
};

struct AllReduceTwoShot {
  AllReduceArgs args;
  BlockCut cut;

  explicit AllReduceTwoShot(const AllReduceArgs& a)
      : args(a), cut(cut_blocks(a.count, a.block, a.peers.size, kLineBytes / a.element_size)) {}

  uint64_t payload_bytes() const { return kInBlocks; }
  uint32_t steps() const { return static_cast<uint32_t>(cut.blocks) + 3; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, args.peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    if (step >= 1) stage(executor, step - 1);
    if (step >= 2) reduce(executor, step - 2);
    if (step >= 3) copy_out(executor, step - 3);
  }

 private:
  uint64_t turn(uint64_t b) const { return args.sequence * cut.blocks + b; }
  uint64_t stage_at(uint64_t b) const {
    const uint64_t elements = cut.blocks == 1 ? cut.last_block : cut.full_block;
    return args.layout.stage(turn(b), elements * args.element_size);
  }
  uint64_t result_at(uint64_t b) const {
    const uint64_t elements = cut.blocks == 1 ? cut.last_slice : cut.full_slice;
    return args.layout.result(turn(b), elements * args.element_size);
  }
  /// Bytes from the start of the message to the start of block `b`.
  uint64_t block_at(uint64_t b) const { return b * args.block * args.element_size; }
  Span bytes_of(const Span& span) const {
    return Span{span.first * args.element_size, span.count * args.element_size};
  }

  void stage(CpuExecutor& executor, uint64_t b) const {
    if (b >= cut.blocks) return;
    const PeerView& peers = args.peers;
    char* slot = peers.scratch[peers.rank] + stage_at(b);
    const char* block = args.input + block_at(b);
    for (int owner = 0; owner < peers.size; ++owner) {
      const Span span = bytes_of(cut.slice(b, owner));
      if (owner != peers.rank && span.count != 0) {
        executor.stage_span(slot + span.first, block + span.first, span.count);
      }
    }
  }

  void reduce(CpuExecutor& executor, uint64_t b) const {
    if (b >= cut.blocks) return;
    const PeerView& peers = args.peers;
    const Span span = cut.slice(b, peers.rank);
    if (span.count == 0) return;
    const uint64_t within = span.first * args.element_size;
    const uint64_t stage = stage_at(b) + within;
    const uint64_t at = block_at(b) + within;
    char* result = peers.scratch[peers.rank] + result_at(b);
    const bool wanted = args.wanted();
    executor.reduce_span(
        wanted ? args.output + at : result, args.root < 0 ? result : nullptr,
        [&](int peer) -> const char* {
          return peer == peers.rank ? args.input + at : peers.scratch[peer] + stage;
        },
        span.count, args.element_size);
  }

  void copy_out(CpuExecutor& executor, uint64_t b) const {
    if (!args.wanted()) return;
    const PeerView& peers = args.peers;
    const uint64_t result = result_at(b);
    char* block = args.output + block_at(b);
    int owner = peers.rank;
    for (int hop = 1; hop < peers.size; ++hop) {  // start after this rank: spread the readers
      owner = owner + 1 == peers.size ? 0 : owner + 1;
      const Span span = bytes_of(cut.slice(b, owner));
      if (span.count != 0) {
        executor.copy_span(block + span.first, peers.scratch[owner] + result, span.count);
      }
    }
  }
};

}  // namespace fastcomm
