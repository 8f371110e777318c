// fused_all_reduce: a list of gradients, reduced where they lie: cast to the wire's type, summed in the
// order of the fixed tree, averaged, multiplied, and looked at: their norm, and whether all are finite.
//
// Pipelined over blocks b = 0 .. B-1, as AllReduceTwoShot. Cost: B + 2 waits; of N bytes in the wire's
// type (n-1)/n staged, (n-1)/n read to reduce and (n-1)/n to copy out; the gradients are read once and
// written once. Norms cost one pass of each rank over its slices, which the first-level cache holds.
//
//   step 0   nothing: its publication says that this rank has left the operation before
//   step k   stage block k-1: the units that peers reduce, to the stage slot; where the wire's type is
//                             another, all units
//            reduce block k-2: this rank's units, to the gradients and the result slot, with their norms
//            copy out block k-3: the peers' units and norms, from their result slots
//
// Slots are used again as those of AllReduceTwoShot are, and by the same waits. A layout of slots other
// than the operation's before is safe: nothing is written before the wait of step 1, which says that
// every rank has left that operation.
//
// In place: a rank's own units are read and written at equal positions; others are staged, in the step
// before they are written. Nothing is written before all headers have been compared.
//
// Rounding: an element of a wire type of its own is rounded to it on every rank, the own one included,
// summed in fp32, and rounded to it once more; the gradients get that value. With norms of what is
// written, all of it is the same on every rank.
#pragma once

#include <cstring>
#include <memory>

#include "coll/gradient_list.h"
#include "coll/schedule.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct FusedAllReduce {
  const PeerView& peers;  // outlives the schedule
  std::shared_ptr<GradientList> list;

  uint32_t steps() const { return static_cast<uint32_t>(list->blocks()) + 3; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, peers.size}; }

  template <class Executor>
  void run(Executor& executor, uint32_t step) const {
    if (step >= 1) stage(executor, step - 1);
    if (step >= 2) reduce(executor, step - 2);
    if (step >= 3) copy_out(executor, step - 3);
  }

 private:
  static constexpr uint64_t kPiece = 256;  // elements; a multiple of NormLanes::kCount

  static bool cast(const Gradient& tensor) { return tensor.wire != tensor.dtype; }

  template <class Executor>
  void stage(Executor& executor, uint64_t b) const {
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
        executor.convert_span(slot + unit.stage, tensor.wire, list->data_of(unit), tensor.dtype,
                              count);
      }
    }
  }

  template <class Executor>
  void reduce(Executor& executor, uint64_t b) const {
    if (b >= list->blocks()) return;
    const GradientSpec& spec = list->spec();
    const int divisor = spec.average ? peers.size : 1;
    const uint64_t stage = list->stage_at(b);
    char* slot = peers.scratch[peers.rank] + list->result_at(b);
    const uint32_t begin = list->begin(b, peers.rank), end = list->end(b, peers.rank);
    for (uint32_t u = begin; u < end; ++u) {
      const GradientUnit& unit = list->unit(u);
      const Gradient& tensor = list->tensor_of(unit);
      const uint64_t wire = dtype_size(tensor.wire);
      const auto typed = executor.typed(tensor.dtype, tensor.wire, spec.norm);
      NormLanes lanes;
      // In pieces: the norm of one is computed while the next one comes out of the peers' caches.
      for (uint64_t done = 0; done < unit.count; done += kPiece) {
        const uint64_t count = smaller(kPiece, unit.count - done);
        char* own = list->data_of(unit) + done * dtype_size(tensor.dtype);
        char* result = slot + unit.result + done * wire;
        const auto source = [&](int peer) -> const char* {
          return peer == peers.rank && !cast(tensor)
                     ? own
                     : peers.scratch[peer] + stage + unit.stage + done * wire;
        };
        executor.reduce_typed_span(typed.reduce, cast(tensor) ? result : own,
                                   cast(tensor) ? nullptr : result, source, count, divisor,
                                   spec.unscale);
        if (cast(tensor)) typed.widen(own, result, count);
        typed.norm(lanes, own, count);
      }
      const BlockNorm norm = block_norm(lanes, spec.norm);
      std::memcpy(slot + list->norm_at(u - begin), &norm, sizeof(norm));
      list->note(u, norm);
    }
  }

  template <class Executor>
  void copy_out(Executor& executor, uint64_t b) const {
    int owner = peers.rank;
    for (int hop = 1; hop < peers.size; ++hop) {  // start behind the own rank: spread the readers
      owner = owner + 1 == peers.size ? 0 : owner + 1;
      const char* slot = peers.scratch[owner] + list->result_at(b);
      const uint32_t begin = list->begin(b, owner), end = list->end(b, owner);
      uint64_t count = 0;
      for (uint32_t u = begin, next; u < end; u = next) {
        next = list->run_from(u, end, count);
        const GradientUnit& unit = list->unit(u);
        const Gradient& tensor = list->tensor_of(unit);
        executor.convert_span(list->data_of(unit), tensor.dtype, slot + unit.result, tensor.wire,
                              count);
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
