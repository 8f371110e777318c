// The rings of point-to-point messages: one for each ordered pair (sender s, receiver r), after the
// collective scratch in the ranks' windows. One end of a ring is a RingSender, the other a
// RingReceiver; engines/cpu/point_to_point.h decides about the messages in it.
//
// Every word has one writer, lies in its writer's window, and only ever counts up (and wraps). For
// the pair (s, r), in s's window, in r's place there:
//
//   opened   1 once the cells are backed by memory
//   cells    a ring of announcements: stamp, tag, size, dtype, and up to kEagerBytes of data after
//            them, so that 8 bytes travel in the one cache line that announces them
//   filled   slots filled so far
//   slots    a ring of pieces of long messages
//
// and in r's window, in s's place there:
//
//   taken    announcements read so far: their cells are s's again
//   grants   a ring of announcements' numbers: the long messages that r is ready for, in this order
//   drained  slots read so far: they are s's again
//
// Long messages go through the slots one after the other, in the order of their grants, so neither
// end names the message of a slot. A message's number is that of its announcement, from 0.
//
// Memory ordering. Each wait is one acquire load of one word, which makes visible or free:
//
//   wait of   for                      the release before it makes sure
//   r         cell.stamp == number+1   tag, size, dtype and data of that cell are written. The
//                                      value left there is number+1-kRingCells, or 0 in fresh
//                                      memory: never the awaited one, so a stamp needs no counter
//                                      beside it
//   s         taken  > number-kCells   r has read the cell's last content (a plain read before the
//                                      release, a plain write after the acquire: reads do not move
//                                      below the one, writes not above the other)
//   s         grant  == (g+1, number)  nothing: number and stamp are one word, and s reads nothing
//                                      of r's after it. A grant's place is free again when r has
//                                      drained the message of the grant kRingGrants before, which s
//                                      must have read
//   r         filled > piece           the piece's bytes are in its slot
//   s         drained > piece-kSlots   r has read the slot's last content (as for taken)
//   r         opened == 1              only that the cells are backed; their stamps are zero
//
// A publication is sequentially consistent and followed by a look at the peer's sleepers; a rank
// that falls asleep counts itself in first and then looks at all of its words again
// (transport/doorbell.h).
//
// Words are zero at the group's start: a window's memory is fresh, or a hole was punched in it when
// the last group let it go (Segment::free), after every peer had left that group or was dead; only
// its owner writes to a window.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>

#include "coll/plan.h"
#include "core/hd.h"
#include "core/types.h"
#include "transport/transport.h"

namespace fastcomm {

constexpr uint32_t kRingCells = 32;
constexpr uint32_t kRingSlots = 8;
constexpr uint32_t kRingGrants = 8;

static_assert(((kRingCells & (kRingCells - 1)) | (kRingSlots & (kRingSlots - 1)) |
               (kRingGrants & (kRingGrants - 1))) == 0,
              "places stay in step when counters wrap");

/// One rank's words towards one peer, as sender and as receiver.
struct RingWords {
  alignas(kLineBytes) std::atomic<uint32_t> opened;
  alignas(kLineBytes) std::atomic<uint32_t> filled;
  alignas(kLineBytes) std::atomic<uint32_t> taken;
  alignas(kLineBytes) std::atomic<uint32_t> drained;
  alignas(kLineBytes) std::atomic<uint64_t> grants[kRingGrants];  // (grant + 1) << 32 | number
};

struct alignas(kLineBytes) Cell {
  std::atomic<uint32_t> stamp;  // its announcement's number + 1
  int32_t tag;
  uint64_t bytes;
  DType dtype;
  char data[kEagerBytes];
};

/// One rank's part of the rings that it shares with one peer; slots lie after it.
struct RingMemory {
  RingWords words;
  Cell cells[kRingCells];

  char* slots() { return reinterpret_cast<char*>(this + 1); }
};
static_assert(sizeof(RingMemory) % kLineBytes == 0, "the next one is aligned");

/// Bytes of the rings in the window of a rank in a group of `size`.
constexpr size_t rings_bytes(int size) {
  return static_cast<size_t>(size - 1) * (sizeof(RingMemory) + kRingSlots * ring_slot_bytes(size));
}

/// Publishes a word for a peer that may sleep; `rule` makes it relaxed in a negative control.
template <class Word>
void publish_word(std::atomic<Word>& word, Word value, [[maybe_unused]] Control rule) {
  FC_INTERLEAVE();
  if (FC_LEFT_OUT(rule)) return word.store(value, std::memory_order_relaxed);
  word.store(value, std::memory_order_seq_cst);
}

/// Looks at a word of the peer.
template <class Word>
Word look_at_word(const std::atomic<Word>& word, [[maybe_unused]] Control rule) {
  FC_INTERLEAVE();
  if (FC_LEFT_OUT(rule)) return word.load(std::memory_order_relaxed);
  return word.load(std::memory_order_acquire);
}

/// State of both ends: the places of the two parts of the ring.
class RingEnd {
 protected:
  /// `base` is the start of the rings in every rank's scratch. Backs this rank's part up to
  /// `bytes`, and makes sure that the peer's words can be read. Raises Error(kSystem).
  RingEnd(Transport& peers, size_t base, int peer, size_t bytes);

  /// Place of the part towards `peer` in the scratch of `owner`, which has none towards itself.
  static size_t at(size_t base, int owner, int peer, int size) {
    return base + static_cast<size_t>(peer - (peer > owner)) *
                      (sizeof(RingMemory) + kRingSlots * ring_slot_bytes(size));
  }
  void ring_peer() const { ring_if_asleep(*doorbell_); }

  RingMemory* own_;
  RingMemory* theirs_;
  Doorbell* doorbell_;
  size_t slot_bytes_;
};

/// Neither of the two is thread-safe: PointToPoint's lock is around them.
class RingSender : private RingEnd {
 public:
  RingSender(Transport& peers, size_t base, int peer);

  /// Makes room for messages that are longer than kEagerBytes.
  void back_slots();

  /// Announces a message, with its data if that is short. Returns its number, or nothing while the
  /// ring is full.
  std::optional<uint32_t> post(int32_t tag, DType dtype, uint64_t bytes, const char* data) {
    if (posted_ - taken_ == kRingCells) {
      taken_ = look_at_word(theirs_->words.taken, Control::kRelaxTakenLook);
      if (posted_ - taken_ == kRingCells) return std::nullopt;
    }
    Cell& cell = own_->cells[posted_ % kRingCells];
    cell.tag = tag;
    cell.bytes = bytes;
    cell.dtype = dtype;
    if (bytes != 0 && bytes <= kEagerBytes) std::memcpy(cell.data, data, bytes);
    publish_word(cell.stamp, posted_ + 1, Control::kRelaxStamp);
    ring_peer();
    return posted_++;
  }

  /// The number of the next long message that the peer is ready for.
  std::optional<uint32_t> next_grant();

  /// True if a slot is free for the next piece.
  bool can_fill();
  /// Most bytes of a piece of a message.
  size_t piece_bytes() const { return slot_bytes_; }
  /// Writes a piece of at most piece_bytes() into the next slot, after can_fill().
  void fill(const char* data, size_t bytes);

 private:
  Transport& peers_;
  size_t slots_at_;  // in this rank's scratch
  bool slots_backed_ = false;
  uint32_t posted_ = 0, taken_ = 0, granted_ = 0, filled_ = 0, drained_ = 0;
};

class RingReceiver : private RingEnd {
 public:
  RingReceiver(Transport& peers, size_t base, int peer);

  /// The next announcement, or nullptr. It stays until take().
  const Cell* next() {
    if (!opened_) {
      if (look_at_word(theirs_->words.opened, Control::kNone) == 0) return nullptr;
      opened_ = true;
    }
    const Cell& cell = theirs_->cells[taken_ % kRingCells];
    const uint32_t stamp = look_at_word(cell.stamp, Control::kRelaxStampLook);
    return stamp == taken_ + 1 ? &cell : nullptr;
  }
  /// Its number.
  uint32_t number() const { return taken_; }
  /// Gives its cell back.
  void take() {
    publish_word(own_->words.taken, ++taken_, Control::kRelaxTaken);
    ring_peer();
  }

  /// Asks for a long message; false while too many are asked for.
  bool grant(uint32_t number);
  size_t piece_bytes() const { return slot_bytes_; }
  /// The next piece, or nullptr; it stays until drop_piece().
  const char* next_piece();
  void drop_piece();
  /// Notes that the first of the granted messages is here in full.
  void end_grant() { ++ended_; }

 private:
  bool opened_ = false;
  uint32_t taken_ = 0, granted_ = 0, ended_ = 0, filled_ = 0, drained_ = 0;
};

}  // namespace fastcomm
