// The control part of a rank's window, for groups of CPU ranks.
//
//   line 0      the flag
//   line 1      state of this rank: at work, gone (leave notice), or poisoned, and by whose fault;
//               the core on which it ran last
//   5 lines     messages: their way, and those not announced yet, by peer
//   2x8 lines   the rank's notice of an operation, by the operation's parity (coll/call_header.h)
//   8 lines     the reason why the group is poisoned, as text
//
// Scratch (coll/plan.h) lies after it. Only the owner writes here.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/utf8.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// Names memory that a rank's peers cannot reach (Transport::locate).
constexpr uint64_t kNotShared = ~uint64_t{0};

/// Bytes for a rank's notice of an operation.
constexpr size_t kNoticeBytes = 8 * kLineBytes;

/// Copies as much of a text as fits, without cutting a UTF-8 character: readers decode it.
inline void cut_text(char* to, size_t room, const char* from) {
  const std::string_view kept = beginning_of(from, room - 1);
  to[kept.copy(to, kept.size())] = '\0';
}

struct ControlBlock {
  alignas(kLineBytes) uint32_t flag;

  alignas(kLineBytes) std::atomic<uint64_t> left;  // 1 + the operations finished before leaving
  std::atomic<uint32_t> cpu;       // the core on which this rank ran last: only a hint
  std::atomic<uint32_t> poisoned;  // once not zero, the fields below and `reason` are complete
  uint32_t cause;                  // ErrorCode
  int32_t blamed;                  // the rank at fault, or -1
  uint64_t first_failed;           // the sequence number of the first operation not finished here

  // Of messages: this rank gets those to come by another way than this memory; and how many of its
  // own, by peer, are neither in the peer's ring nor on the other way.
  alignas(kLineBytes) std::atomic<uint32_t> elsewhere;
  std::atomic<uint32_t> announcing[kMaxRanks];

  alignas(kLineBytes) char notices[2][kNoticeBytes];

  alignas(kLineBytes) char reason[8 * kLineBytes];

  /// Written only when it changes: peers read the line while they wait.
  void note_cpu() {
    const auto here = static_cast<uint32_t>(sched_getcpu());
    if (cpu.load(std::memory_order_relaxed) != here) cpu.store(here, std::memory_order_relaxed);
  }

  /// True if this rank's operation with that number ended in an error. Its user touches the
  /// operation's memory only after the mark that is read here: a fence follows each of the two.
  bool gave_up(uint64_t sequence) const {
    if (poisoned.load(std::memory_order_acquire) != 0 && first_failed <= sequence) return true;
    const uint64_t left = this->left.load(std::memory_order_acquire);
    return left != 0 && left - 1 <= sequence;
  }

  /// Publishes that this rank has left after `operations` operations, and how; "" means in good
  /// order. A rank that was poisoned before keeps that reason, which peers look at first.
  void announce_leave(uint64_t operations, const char* how) {
    if (poisoned.load(std::memory_order_relaxed) == 0) {
      cut_text(reason, sizeof(reason), how);
    }
    // Release: a reader that sees the leave notice with acquire sees the text and every flag
    // published before.
    left.store(operations + 1, std::memory_order_release);
  }

  /// Text for a rank that has announced its leave, seen with acquire, and is not poisoned.
  const char* leave_text() const {
    return reason[0] == '\0' ? "destroyed its process group" : reason;
  }

  /// Publishes the reason why this rank gives up the group, and the first operation that it did not
  /// finish. The first reason stays.
  void poison(uint32_t code, int peer, uint64_t sequence, const char* text) {
    if (poisoned.load(std::memory_order_relaxed) != 0) return;
    cause = code;
    blamed = peer;
    first_failed = sequence;
    cut_text(reason, sizeof(reason), text);
    // Release: a reader that sees the mark with acquire reads the whole text.
    poisoned.store(1, std::memory_order_release);
  }
};
static_assert(sizeof(ControlBlock) % kLineBytes == 0, "scratch behind it is aligned");

}  // namespace fastcomm
