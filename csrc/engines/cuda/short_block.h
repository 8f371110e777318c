// The kernel of a short operation (engines/cuda/short.h), for any reduction of one type: one block,
// which stages, meets, and pulls or reduces. Memory ordering: in engines/cuda/short.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/control.h"
#include "engines/cuda/meeting_block.h"
#include "kernels/cuda/combine_chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_chunks.h"

namespace fastcomm {

constexpr int kShortWords = record_words<SegmentHead>(kMaxReduceSources, 1);
/// A reduction out of either slot.
struct ShortTable : ReduceTerms {
  uint64_t words[2][kShortWords];
};

/// A copy of `bytes`; each end may be in a slot, of which the first is named.
struct ShortMove {
  const char* from;
  char* to;
  bool from_slot;
};

struct ShortArgs {
  MeetingArgs meeting;
  uint64_t slot_bytes;
  uint64_t bytes;  // of a move
  int stages;      // from this rank's memory into its slot
  int pulls;       // into its results
  ShortMove stage[kMaxDeviceRanks];
  ShortMove pull[kMaxDeviceRanks];
  int results;
  uint32_t width;  // of their elements
  uint64_t nan;    // 0: none
  char* result[kMaxDeviceRanks];
  uint64_t count;    // elements of a result
  ShortTable table;  // without a record: nothing to reduce
  CombineTerms combination;
};

/// Meets, after filling this rank's slot. For all threads; true if all ranks have come and staged.
FC_DEVICE bool meet_in_short(const ShortArgs& args, const ChannelState& state, uint64_t shift) {
  for (int i = 0; i < args.stages; ++i) {
    char* const to = args.stage[i].to + shift;
    FC_TOUCHES(to, args.bytes, true);
    copy_by_block(to, args.stage[i].from, args.bytes);
  }
  // All threads' stores come before the release stores of the flags.
  if (!FC_LEFT_OUT(Control::kNoBarrier)) __syncthreads();
  const auto met = meet_once(args.meeting, state, OneCall{}, /*opens=*/true, [](const auto&) {});
  return met.failed == 0;
}

FC_DEVICE void pull_in_short(const ShortArgs& args, uint64_t shift) {
  for (int i = 0; i < args.pulls; ++i) {
    const ShortMove& move = args.pull[i];
    const char* const from = move.from + (move.from_slot ? shift : 0);
    if (from == move.to) continue;
    if (move.from_slot) FC_TOUCHES(from, args.bytes, false);
    copy_by_block(move.to, from, args.bytes);
  }
}

/// Not a reduction.
struct NoNumbers {};

/// SUM and AVG.
template <class T>
struct ShortSums {
  using Value = T;
  static FC_DEVICE void run(const TableView<SegmentHead>& table, const ShortArgs&) {
    reduce_chunks<T, T, 0>(table);
  }
};

/// All others, and those of unsigned types.
template <class T>
struct ShortCombinations {
  using Value = T;
  static FC_DEVICE void run(const TableView<SegmentHead>& table, const ShortArgs& args) {
    combine_chunks<T>(table, args.combination);
  }
};

template <class Reduction>
FC_DEVICE void reduce_in_short(const ShortArgs& args, uint64_t parity) {
  if constexpr (!std::is_same<Reduction, NoNumbers>::value) {
    const TableView<SegmentHead> table{args.table, args.table.words[parity]};
    for (int j = 0; j < table.terms.num_sources; ++j) {
      FC_TOUCHES(reinterpret_cast<const char*>(table.words[table.kHeadWords + j]),
                 args.count * sizeof(typename Reduction::Value), false);
    }
    Reduction::run(table, args);
  }
}

template <class Reduction>
__global__ void __launch_bounds__(kTableThreads, 1)
    short_kernel(const __grid_constant__ ShortArgs args) {
  ChannelState state;
  const bool entered = enter_channel(args.meeting, state);
  const uint64_t parity = FC_LEFT_OUT(Control::kOneSlot) ? 0 : state.shorts & 1;
  const uint64_t shift = parity * args.slot_bytes;
  const bool good = entered && meet_in_short(args, state, shift);
  if (good) {
    pull_in_short(args, shift);
    if (args.table.count != 0) reduce_in_short<Reduction>(args, parity);
  } else if (args.nan != 0) {
    for (int i = 0; i < args.results; ++i) spoil(args.result[i], args.count, args.width, args.nan);
  }
  if (!entered) return;
  if (args.meeting.place.guard.gives) __syncthreads();  // all threads have read the slots
  if (threadIdx.x != 0) return;
  leave_channel(args.meeting, {state.base + 1, good ? 0u : 1u, state.shorts + 1, 0});
}

using ShortKernel = ReduceKernel<ShortArgs>;

/// The kernel for reductions of kernels/cuda/multi_combine.h, by the type under which kernels know
/// it.
ShortKernel short_combination_for(DType dtype);

}  // namespace fastcomm
