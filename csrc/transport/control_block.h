// The control part of a rank's window, for groups of CPU ranks.
//
//   line 0      the flag
//   line 1      the state of this rank: at work, gone (leave notice), or poisoned, and by whose fault;
//               on which core it ran last
//   2x8 lines   what the rank says of an operation, by its parity (coll/call_header.h)
//   8 lines     why the group is poisoned, as text
//
// Scratch (coll/plan.h) lies after it.
//
// Everything here is written by its owner alone.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/utf8.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// The name of memory that a rank's peers cannot reach (Transport::locate).
constexpr uint64_t kNotShared = ~uint64_t{0};

/// Room for what a rank says of an operation.
constexpr size_t kNoticeBytes = 8 * kLineBytes;

/// Copies as much of a text as there is room for, without cutting a UTF-8 character: readers decode it.
inline void cut_text(char* to, size_t room, const char* from) {
  const std::string_view kept = beginning_of(from, room - 1);
  to[kept.copy(to, kept.size())] = '\0';
}

struct ControlBlock {
  alignas(kLineBytes) uint32_t flag;

  alignas(kLineBytes) std::atomic<uint64_t> left;  // 1 + the operations finished before leaving
  std::atomic<uint32_t> cpu;                       // where this rank last ran: a hint, no more
  std::atomic<uint32_t> poisoned;  // what follows and `reason` are complete when this is not zero
  uint32_t cause;                  // ErrorCode
  int32_t blamed;                  // the rank at fault, or -1
  uint64_t first_failed;           // the sequence number of the first operation not finished here

  alignas(kLineBytes) char notices[2][kNoticeBytes];

  alignas(kLineBytes) char reason[8 * kLineBytes];

  /// Peers read the line while they wait: it is written only when it changes.
  void note_cpu() {
    const auto here = static_cast<uint32_t>(sched_getcpu());
    if (cpu.load(std::memory_order_relaxed) != here) cpu.store(here, std::memory_order_relaxed);
  }

  /// Whether this rank's operation with that number ended in an error. What its user does with the
  /// operation's memory comes after the mark that is read here: a fence follows each of the two.
  bool gave_up(uint64_t sequence) const {
    if (poisoned.load(std::memory_order_acquire) != 0 && first_failed <= sequence) return true;
    const uint64_t left = this->left.load(std::memory_order_acquire);
    return left != 0 && left - 1 <= sequence;
  }

  /// Publishes that this rank has left after that many operations, and how; "" for in good order. A rank
  /// that was poisoned before keeps that reason, which is what peers look at first.
  void announce_leave(uint64_t operations, const char* how) {
    if (poisoned.load(std::memory_order_relaxed) == 0) {
      cut_text(reason, sizeof(reason), how);
    }
    // Release: whoever sees the leave notice with acquire sees every flag published before, and the text.
    left.store(operations + 1, std::memory_order_release);
  }

  /// What to report of a rank that has announced that it leaves, seen with acquire, and is not poisoned.
  const char* leave_text() const {
    return reason[0] == '\0' ? "destroyed its process group" : reason;
  }

  /// Publishes why this rank gives the group up, and from which operation on: it has finished the earlier
  /// ones. The first reason stays.
  void poison(uint32_t code, int peer, uint64_t sequence, const char* text) {
    if (poisoned.load(std::memory_order_relaxed) != 0) return;
    cause = code;
    blamed = peer;
    first_failed = sequence;
    cut_text(reason, sizeof(reason), text);
    // Release: whoever sees the mark with acquire reads the whole text.
    poisoned.store(1, std::memory_order_release);
  }
};
static_assert(sizeof(ControlBlock) % kLineBytes == 0, "scratch behind it is aligned");

}  // namespace fastcomm
