// A block's work on its chunks of a table of reductions. kernels/cuda/multi_reduce.cu describes the
// layout of memory, and the reason why it needs no ordering.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/numeric.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_table.h"

namespace fastcomm {

static_assert(kMaxReduceSources <= kMaxTreeSources, "the tree is wide enough");

/// Sizes of a thread's loads in flight.
template <class In, class Out, int N>
struct InFlight {
  static constexpr int kPackElements = Shape<In, Out, N>::kPackElements;
  static constexpr int kLoads = kPackElements * static_cast<int>(sizeof(In)) / kPackBytes;
  // Per source. An element of one byte has an accumulator of four.
  static constexpr int kPacks = sizeof(In) == 1 ? 1 : N == 1 ? 4 : 2;
  static constexpr int kGroups = kPacks / kLoads;
  static constexpr int kChunk = kTableThreads * kGroups * kPackElements;  // elements
  // A shifted load loads two packs.
  static constexpr int kShiftedElements = kPackBytes / static_cast<int>(sizeof(In));
  static constexpr int kShiftedGroups = kPacks > 2 ? kPacks / 2 : 1;
  static constexpr int kSingles = 4;
  static constexpr uint64_t kGuard = kShiftedElements;  // a shifted load reads less beside a pack
};

/// Half a pack: 16 bytes after conversion to a type of half the size.
struct alignas(8) HalfPack {
  uint32_t x, y;
};

/// A block's chunks.
template <class In, class Out, int N>
FC_DEVICE void reduce_chunks(const TableView<SegmentHead>& table) {
  using Kind = InFlight<In, Out, N>;
  constexpr uint64_t kElements = Kind::kPackElements;
  constexpr uint64_t kShiftedElements = Kind::kShiftedElements;
  using ShiftedOut = std::conditional_t<(sizeof(Out) < sizeof(In)), HalfPack, uint4>;
  if (has_failed(table.terms.channel)) return;
  each_chunk<In, Out, N>(table, [&](const auto& worker, const SegmentHead& head, uint32_t chunk) {
    // Positions count from the pack in which the segment starts, elements from the segment's start.
    const uint64_t lead = head.lead;
    const uint64_t at = uint64_t{chunk} * Kind::kChunk;
    const uint64_t low = at < lead ? lead : at;
    const uint64_t end = lead + head.count;
    const uint64_t high = at + Kind::kChunk < end ? at + Kind::kChunk : end;
    const bool shifted = head.packed == kShifted;
    const uint64_t guard = shifted ? Kind::kGuard : 0;
    const PackRange range(low, high, shifted ? kShiftedElements : kElements, head.packed != kSingle,
                          lead + guard, end < guard ? 0 : end - guard);
    if (!shifted && range.pack_low < range.pack_high) {
      worker.template reduce<uint4, uint4, kElements, Kind::kGroups>(
          at + threadIdx.x * kElements - lead, blockDim.x * kElements, range.pack_low - lead,
          range.pack_high - lead);
    }
    if (shifted) {
      constexpr int kMany = Kind::kShiftedGroups;
      const uint64_t step = blockDim.x * kShiftedElements;
      FC_NO_UNROLL
      for (uint64_t i = range.pack_low + threadIdx.x * kShiftedElements; i < range.pack_high;
           i += kMany * step) {
        worker.template reduce<ShiftedLoad, ShiftedOut, kShiftedElements, kMany>(
            i - lead, step, 0, range.pack_high - lead);
      }
    }
    FC_NO_UNROLL
    for (int side = 0; side < 2; ++side) {
      const uint64_t side_end = side == 0 ? range.pack_low : high;
      uint64_t i = (side == 0 ? low : range.pack_high) + threadIdx.x;
      FC_NO_UNROLL
      for (; i < side_end; i += Kind::kSingles * blockDim.x) {
        worker.template reduce<In, Out, 1, Kind::kSingles>(i - lead, blockDim.x, 0,
                                                           side_end - lead);
      }
    }
  });
}

}  // namespace fastcomm
