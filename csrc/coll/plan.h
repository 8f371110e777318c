// Pure arithmetic: messages cut into blocks and slices, and the places of slots in scratch.
//
// block   the part of a message that one step of a pipelined schedule moves
// slice   the part of a block that one rank reduces
// slot    a place in scratch for a payload, a stage or a result; consecutive ones differ
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastcomm {

struct Span {
  uint64_t first;  // in elements
  uint64_t count;
};

inline uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
inline uint64_t round_up(uint64_t a, uint64_t b) { return ceil_div(a, b) * b; }
inline uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/// Piece `index` of `total` elements cut into pieces of `piece` elements; empty past the end.
inline Span cut(uint64_t total, uint64_t piece, uint64_t index) {
  const uint64_t first = smaller(index * piece, total);
  return Span{first, smaller(piece, total - first)};
}

/// Slices of a span, all of one size, that together cover it: the last ones may overlap.
struct EqualSlices {
  Span span;
  uint64_t length;

  /// `whole` is not empty.
  EqualSlices(Span whole, int parts)
      : span(whole), length(ceil_div(whole.count, static_cast<uint64_t>(parts))) {}
  /// The first element of a slice.
  uint64_t first(int index) const {
    return span.first + smaller(static_cast<uint64_t>(index) * length, span.count - length);
  }
};

/// A message cut into blocks, and each block into one slice per rank. Holds every number that needs
/// a division, so that a step needs none.
struct BlockCut {
  uint64_t blocks;
  uint64_t full_block;  // elements of every block but the last
  uint64_t full_slice;  // elements of a slice of such a block
  uint64_t last_block;
  uint64_t last_slice;

  /// Slice `index` of block `b` (b < blocks); `first` counts from the start of the block.
  Span slice(uint64_t b, int index) const {
    const bool last = b + 1 == blocks;
    return cut(last ? last_block : full_block, last ? last_slice : full_slice,
               static_cast<uint64_t>(index));
  }
};

/// Elements of each of `parts` slices of `total` elements, a multiple of `align`. The last slices
/// may be shorter or empty.
inline uint64_t slice_elements(uint64_t total, int parts, uint64_t align) {
  return round_up(ceil_div(total, static_cast<uint64_t>(parts)), align);
}

/// Cuts `count` elements into blocks of `block`, and those into `parts` slices whose boundaries are
/// multiples of `align` elements.
inline BlockCut cut_blocks(uint64_t count, uint64_t block, int parts, uint64_t align) {
  const uint64_t blocks = ceil_div(count, block);
  const uint64_t last = blocks == 0 ? 0 : count - (blocks - 1) * block;
  return BlockCut{blocks, block, slice_elements(block, parts, align), last,
                  slice_elements(last, parts, align)};
}

/// Slice `index` of `parts` of `total` elements; boundaries are multiples of `align` elements.
inline Span slice_of(uint64_t total, int parts, int index, uint64_t align) {
  return cut(total, slice_elements(total, parts, align), static_cast<uint64_t>(index));
}

/// Places of the slots in one rank's scratch, in bytes. Payloads serve one-shot schedules; stages
/// and results serve pipelined ones; a table describes the messages of an all_to_all_v. Payloads
/// share no memory with stages and results, so a one-shot operation may write its payload while a
/// peer still reads the blocks of the previous operation.
///
/// Slots take turns through more memory than is needed. A line that a peer has read is in the
/// peer's cache: writing it costs three to four times as much as writing a line that has left that
/// cache (7 ns instead of 2 between two cores that share a cache; reading a written line takes
/// 1.6). So a line is written again only after about as many bytes as a second-level cache holds.
/// Messages of at most `short_bytes` have two slots of their own instead: in turns they would touch
/// all of that memory, for a line or two each.
struct ScratchLayout {
  uint64_t payload_bytes;       // largest payload
  uint64_t block_bytes;         // largest block; there is room for two stages of it
  uint64_t result_bytes;        // largest result; there is room for two
  uint64_t table_bytes = 0;     // each of two tables
  uint64_t rotation_bytes = 0;  // memory through which payloads take turns; at least two of them
  uint64_t short_bytes = 0;     // each of two payload slots of short messages

  static constexpr uint64_t kSlotAlign = 64;

  uint64_t table(uint64_t sequence) const { return 2 * short_bytes + (sequence & 1) * table_bytes; }
  /// The payload slot of operation `sequence`, for `bytes`. It shares no memory with that of the
  /// previous operation: even and odd operations have one half of the rotation each.
  uint64_t payload(uint64_t sequence, uint64_t bytes) const {
    if (bytes <= short_bytes) return (sequence & 1) * short_bytes;
    const uint64_t half = rotation_bytes / 2, stride = round_up(bytes, kSlotAlign);
    const uint64_t turn = (sequence >> 1) % (half / stride);
    return shorts() + (sequence & 1) * half + turn * stride;
  }
  /// The stage slot of a block. `turn` counts the blocks as if all operations were equal to this
  /// one; consecutive turns have different slots.
  uint64_t stage(uint64_t turn, uint64_t bytes) const {
    return shorts() + rotation_bytes + place_in(2 * block_bytes, turn, bytes);
  }
  uint64_t result(uint64_t turn, uint64_t bytes) const {
    return shorts() + rotation_bytes + 2 * block_bytes + place_in(2 * result_bytes, turn, bytes);
  }
  /// Bytes from the start of scratch that a one-shot operation with such a payload uses.
  uint64_t in_one_step(uint64_t bytes) const {
    return bytes <= short_bytes ? shorts() : shorts() + rotation_bytes;
  }
  /// Bytes of all slots.
  uint64_t total() const { return shorts() + rotation_bytes + 2 * (block_bytes + result_bytes); }

 private:
  uint64_t shorts() const { return 2 * (short_bytes + table_bytes); }
  uint64_t place_in(uint64_t room, uint64_t turn, uint64_t bytes) const {
    const uint64_t stride = round_up(bytes, kSlotAlign);
    if (stride == 0) return 0;
    uint64_t places = smaller(room, rotation_bytes) / stride;
    if (places < 2) places = 2;
    return turn % places * stride;
  }
};

/// Bytes of a block that one rank stages and others copy out, small enough that the two overlap.
inline uint64_t overlapping_block(uint64_t bytes, const ScratchLayout& layout) {
  constexpr uint64_t kBlocks = 8, kSmallest = 64 * 1024, kLine = 64;
  const uint64_t wanted = round_up(ceil_div(bytes, kBlocks), kLine);
  return smaller(layout.block_bytes, wanted < kSmallest ? kSmallest : wanted);
}

/// Sends of at most this many bytes travel with their announcement.
constexpr size_t kEagerBytes = 2048;
/// Bytes of a ring's slot, and so of each piece of a longer send; sender and receiver copy pieces
/// at the same time. With larger slots, two ranks that share a core switch less often; with smaller
/// ones, the rings of 64 ranks fit into some 20 MiB of address space per rank. Only pairs that use
/// their ring take memory for it.
constexpr size_t ring_slot_bytes(int size) { return size <= 16 ? 128 * 1024 : 32 * 1024; }

}  // namespace fastcomm
