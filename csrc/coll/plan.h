// Pure arithmetic: how a message is cut into blocks and slices, and where slots lie in scratch.
//
// block   what one step of a pipelined schedule moves
// slice   the part of a block that one rank reduces
// slot    one of the two copies (by parity) of a piece of scratch
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/hd.h"

namespace fastcomm {

struct Span {
  uint64_t first;  // in elements
  uint64_t count;
};

FC_HD uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
FC_HD uint64_t round_up(uint64_t a, uint64_t b) { return ceil_div(a, b) * b; }
FC_HD uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/// Piece `index` of `total` elements cut into pieces of `piece` elements; empty past the end.
FC_HD Span cut(uint64_t total, uint64_t piece, uint64_t index) {
  const uint64_t first = smaller(index * piece, total);
  return Span{first, smaller(piece, total - first)};
}

/// A message cut into blocks, and each block into one slice a rank. Holds every number that needs a
/// division, so that a step needs none: a GPU has no instruction for a 64-bit division.
struct BlockCut {
  uint64_t blocks;
  uint64_t full_block;  // elements of every block but the last
  uint64_t full_slice;  // elements of a slice of such a block
  uint64_t last_block;
  uint64_t last_slice;

  /// Slice `index` of block `b` (b < blocks); `first` counts from the start of the block.
  FC_HD Span slice(uint64_t b, int index) const {
    const bool last = b + 1 == blocks;
    return cut(last ? last_block : full_block, last ? last_slice : full_slice,
               static_cast<uint64_t>(index));
  }
};

/// Elements of each of `parts` slices of `total` elements (the last ones may be shorter or empty).
FC_HD uint64_t slice_elements(uint64_t total, int parts, uint64_t align) {
  return round_up(ceil_div(total, static_cast<uint64_t>(parts)), align);
}

/// Cuts `count` elements into blocks of `block`, and those into `parts` slices whose boundaries are
/// multiples of `align` elements.
FC_HD BlockCut cut_blocks(uint64_t count, uint64_t block, int parts, uint64_t align) {
  const uint64_t blocks = ceil_div(count, block);
  const uint64_t last = blocks == 0 ? 0 : count - (blocks - 1) * block;
  return BlockCut{blocks, block, slice_elements(block, parts, align), last,
                  slice_elements(last, parts, align)};
}

/// Slice `index` of `parts` of `total` elements; boundaries are multiples of `align` elements.
FC_HD Span slice_of(uint64_t total, int parts, int index, uint64_t align) {
  return cut(total, slice_elements(total, parts, align), static_cast<uint64_t>(index));
}

/// Where the slots of one rank's scratch lie, in bytes. `payload` serves one-shot schedules and is
/// chosen by the parity of the operation, as is `table`, where an all_to_all_v says what it sends to whom;
/// `stage` and `result` serve pipelined ones and are chosen by the parity of the block. The two kinds
/// never share memory, so a one-shot operation may write its payload while a peer still reads the
/// blocks of the operation before.
struct ScratchLayout {
  uint64_t payload_bytes;    // each of two payload slots
  uint64_t block_bytes;      // each of two stage slots
  uint64_t result_bytes;     // each of two result slots
  uint64_t origin = 0;       // where this channel's slots begin
  uint64_t table_bytes = 0;  // each of two tables; none on a device

  FC_HD uint64_t payload(uint64_t parity) const { return origin + (parity & 1) * payload_bytes; }
  FC_HD uint64_t table(uint64_t parity) const {
    return origin + 2 * payload_bytes + (parity & 1) * table_bytes;
  }
  FC_HD uint64_t stage(uint64_t parity) const {
    return origin + in_one_step() + (parity & 1) * block_bytes;
  }
  FC_HD uint64_t result(uint64_t parity) const {
    return origin + in_one_step() + 2 * block_bytes + (parity & 1) * result_bytes;
  }
  /// Bytes of what operations of one step use.
  FC_HD uint64_t in_one_step() const { return 2 * (payload_bytes + table_bytes); }
  /// Bytes that one channel takes.
  FC_HD uint64_t total() const { return in_one_step() + 2 * (block_bytes + result_bytes); }
};

/// Bytes of a block where one rank stages what others copy out: enough blocks to overlap the two.
inline uint64_t overlapping_block(uint64_t bytes, const ScratchLayout& layout) {
  constexpr uint64_t kBlocks = 8, kSmallest = 64 * 1024, kLine = 64;
  const uint64_t wanted = round_up(ceil_div(bytes, kBlocks), kLine);
  return smaller(layout.block_bytes, wanted < kSmallest ? kSmallest : wanted);
}

/// Of sends: messages of at most so many bytes travel with their announcement.
constexpr size_t kEagerBytes = 2048;
/// What a longer one is cut into, so that sender and receiver copy at the same time. Larger slots let two
/// ranks that share a core change places less often; smaller ones let the rings of 64 ranks fit into some
/// 20 MiB of address space a rank. Memory is taken by pairs that use it.
constexpr size_t ring_slot_bytes(int size) { return size <= 16 ? 128 * 1024 : 32 * 1024; }

}  // namespace fastcomm
