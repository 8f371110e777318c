// Pure arithmetic: messages cut into blocks and slices, and the places of slots in scratch.
//
// block   the part of a message that one step of a pipelined schedule moves
// slice   the part of a block that one rank reduces
// slot    a place in scratch for a piece; consecutive pieces have different slots
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

/// Elements of each of `parts` slices of `total` elements (the last ones may be shorter or empty).
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

/// Places of the slots in one rank's scratch, in bytes. A payload serves one-shot schedules, a
/// table describes the messages of an all_to_all_v; stages and results serve pipelined ones. The
/// two kinds never share memory, so a one-shot operation may write its payload while a peer still
/// reads the blocks of the previous operation.
///
/// Slots take turns through more memory than is needed. A line that a peer has read is in its
/// cache, and writing it then costs three to four times as much as writing one that has left the
/// cache (7 ns to 2 on two cores of one cache; reading a written line, 1.6). So slots return to a
/// line once as much as a second-level cache holds has been written. Messages of at most
/// `short_bytes` do not: they would touch all of that memory for a line or two.
struct ScratchLayout {
  uint64_t payload_bytes;       // largest payload
  uint64_t block_bytes;         // each of two stages of the largest block
  uint64_t result_bytes;        // each of two results
  uint64_t table_bytes = 0;     // each of two tables
  uint64_t rotation_bytes = 0;  // memory through which payloads take turns; at least two of them
  uint64_t short_bytes = 0;

  static constexpr uint64_t kSlotAlign = 64;

  uint64_t table(uint64_t sequence) const { return 2 * short_bytes + (sequence & 1) * table_bytes; }
  /// The payload slot of operation `sequence`, for `bytes`: never that of the previous operation,
  /// since the halves of the rotation belong to even and odd operations.
  uint64_t payload(uint64_t sequence, uint64_t bytes) const {
    if (bytes <= short_bytes) return (sequence & 1) * short_bytes;
    const uint64_t half = rotation_bytes / 2, stride = round_up(bytes, kSlotAlign);
    const uint64_t turn = (sequence >> 1) % (half / stride);
    return shorts() + (sequence & 1) * half + turn * stride;
  }
  /// The slot of block `turn`, counted through operations whose blocks have one size: never that of
  /// the previous block.
  uint64_t stage(uint64_t turn, uint64_t bytes) const {
    return shorts() + rotation_bytes + place_in(2 * block_bytes, turn, bytes);
  }
  uint64_t result(uint64_t turn, uint64_t bytes) const {
    return shorts() + rotation_bytes + 2 * block_bytes + place_in(2 * result_bytes, turn, bytes);
  }
  /// Bytes from the start of scratch that an operation of one step with such a payload uses.
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

/// Bytes of a block that one rank stages and others copy out: small enough to overlap the two.
inline uint64_t overlapping_block(uint64_t bytes, const ScratchLayout& layout) {
  constexpr uint64_t kBlocks = 8, kSmallest = 64 * 1024, kLine = 64;
  const uint64_t wanted = round_up(ceil_div(bytes, kBlocks), kLine);
  return smaller(layout.block_bytes, wanted < kSmallest ? kSmallest : wanted);
}

/// Sends of at most this many bytes travel with their announcement.
constexpr size_t kEagerBytes = 2048;
/// Size of the pieces of a longer send, which let sender and receiver copy at the same time. Larger
/// slots let two ranks that share a core change places less often; smaller ones let the rings of 64
/// ranks fit into some 20 MiB of address space per rank. Only pairs that use them take memory.
constexpr size_t ring_slot_bytes(int size) { return size <= 16 ? 128 * 1024 : 32 * 1024; }

}  // namespace fastcomm
