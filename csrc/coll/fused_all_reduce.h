// fused_all_reduce: a list of gradients, reduced in place: cast to the wire's type, summed in the
// order of the fixed tree, averaged, multiplied, and checked for their norm and for elements that
// are not finite.
//
// fused_reduce_scatter is the same for a list that is dealt to owners (GradientList::shard): a rank
// copies out all norms, and its own part of units that a peer reduced, at most one per tensor.
//
// Pipelined over blocks b = 0 .. B-1, as AllReduceTwoShot. Cost: B + 2 waits; of N bytes in the
// wire's type (n-1)/n staged, (n-1)/n read to reduce and (n-1)/n to copy out; the gradients are
// read once and written once. Norms cost one pass of each rank over its slices, which the
// first-level cache holds.
//
//   step 0   nothing: its publication tells that this rank has left the previous operation
//   step k   stage block k-1: the units that peers reduce, to the stage slot; all units if the
//                             wire's type is another
//            reduce block k-2: this rank's units, to the gradients and the result slot, with their
//                              norms
//            copy out block k-3: the peers' units and norms, from their result slots
//
// Slots are reused as in AllReduceTwoShot, after the same waits. A layout of slots that differs
// from the previous operation's is safe: nothing is written before the wait of step 1, which
// ensures that every rank has left that operation.
//
// In place: a rank's own units are read and written at equal positions; others are staged, in the
// step before they are written. Nothing is written before all headers have been compared.
//
// Rounding: if the wire's type is another, every rank rounds its elements to it, the reducing rank
// included; they are summed in fp32 and rounded once more, and the gradients get that value. It is
// the same on every rank, and so are norms of it. A gradient with a residual is rounded together
// with its previous rounding error, and stores the new error of the first rounding there.
#pragma once

#include <cstring>
#include <memory>

#include "coll/fused_unit.h"
#include "coll/gradient_list.h"
#include "coll/schedule.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct FusedAllReduce {
  const PeerView& peers;  // outlives the schedule
  std::shared_ptr<GradientList> list;

  uint64_t payload_bytes() const { return kInBlocks; }
  uint32_t steps() const { return static_cast<uint32_t>(list->blocks()) + 3; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    if (step >= 1) stage(executor, step - 1);
    if (step >= 2) reduce(executor, step - 2);
    if (step >= 3) copy_out(executor, step - 3);
  }

 private:
  static bool cast(const Gradient& tensor) { return tensor.wire != tensor.dtype; }

  void stage(CpuExecutor& executor, uint64_t b) const {
    if (b >= list->blocks()) return;
    char* slot = peers.scratch[peers.rank] + list->stage_at(b);
    for (int owner = 0; owner < peers.size; ++owner) {
      const uint32_t end = list->end(b, owner);
      uint64_t count = 0;
      for (uint32_t u = list->begin(b, owner), next; u < end; u = next) {
        next = list->run_from(u, end, count);
        const GradientUnit& unit = list->unit(u);
        const Gradient& tensor = list->tensor_of(unit);
        if (owner == peers.rank && !cast(tensor)) continue;
        float* const residual = tensor.residual == nullptr ? nullptr : tensor.residual + unit.first;
        executor.convert_to_slot(slot + unit.stage, tensor.wire, list->data_of(unit), tensor.dtype,
                                 residual, count, owner != peers.rank);
      }
    }
  }

  void reduce(CpuExecutor& executor, uint64_t b) const {
    if (b >= list->blocks()) return;
    const uint64_t stage = list->stage_at(b);
    char* slot = peers.scratch[peers.rank] + list->result_at(b);
    const uint32_t begin = list->begin(b, peers.rank), end = list->end(b, peers.rank);
    for (uint32_t u = begin; u < end; ++u) {
      const GradientUnit& unit = list->unit(u);
      const bool from_slot = cast(list->tensor_of(unit));  // this rank's term, too
      const auto source = [&](int peer) -> const char* {
        return peer == peers.rank && !from_slot ? list->data_of(unit)
                                                : peers.scratch[peer] + stage + unit.stage;
      };
      const bool alone =
          !from_slot && list->sharded(unit) && list->wanted(unit, peers.rank).count == unit.count;
      const BlockNorm norm =
          reduce_unit(executor, *list, u, peers.size, source, alone ? nullptr : slot + unit.result);
      std::memcpy(slot + list->norm_at(u - begin), &norm, sizeof(norm));
    }
  }

  void copy_out(CpuExecutor& executor, uint64_t b) const {
    int owner = peers.rank;
    for (int hop = 1; hop < peers.size; ++hop) {  // start after this rank: spread the readers
      owner = owner + 1 == peers.size ? 0 : owner + 1;
      const char* slot = peers.scratch[owner] + list->result_at(b);
      const uint32_t begin = list->begin(b, owner), end = list->end(b, owner);
      uint64_t count = 0;
      for (uint32_t u = begin, next; u < end; u = next) {
        const GradientUnit& unit = list->unit(u);
        const Gradient& tensor = list->tensor_of(unit);
        Span part{0, 0};
        if (list->sharded(unit)) {
          next = u + 1;
          part = list->wanted(unit, peers.rank);
        } else {
          next = list->run_from(u, end, count);
          part.count = count;
        }
        executor.convert_span(
            list->data_of(unit) + part.first * dtype_size(tensor.dtype), tensor.dtype,
            slot + unit.result + part.first * dtype_size(tensor.wire), tensor.wire, part.count);
      }
      for (uint32_t u = begin; u < end; ++u) {
        BlockNorm norm;
        std::memcpy(&norm, slot + list->norm_at(u - begin), sizeof(norm));
        list->note(u, norm);
      }
    }
  }
};

}  // namespace fastcomm
