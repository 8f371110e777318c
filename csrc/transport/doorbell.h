// Sleep of a rank until a peer publishes, without a system call while nobody sleeps.
//
// A doorbell is a futex word and a count of sleepers, in memory that the peers share; a process has
// one for all its groups. The publisher stores its flag (F) and then reads the sleepers (S). The
// sleeper counts itself in (S) and then reads the flag (F) once more:
//
//     publisher   F.store     S.load   -> not zero: bump the word, wake
//     sleeper     S.add       F.load   -> there: do not sleep
//
// Both sides put sequential consistency between their two steps: the publisher by two such
// accesses, the sleeper by one and a fence. So in the single order one of the two loads comes after
// the other side's store: either the sleeper sees the flag or the publisher sees the sleeper. With
// release and acquire alone both could miss (the store-buffer pattern). The fence orders nothing
// else: data is ordered by the acquire load of the flag. The sleeper reads the futex word before it
// reads the flag, so a ring in between makes the system call return at once.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/clock.h"

namespace fastcomm {

struct alignas(64) Doorbell {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> sleepers;
};

/// Bumps the word and wakes every sleeper, in any process.
void ring(Doorbell& doorbell);

inline void ring_if_asleep(Doorbell& doorbell) {
  if (doorbell.sleepers.load(std::memory_order_seq_cst) != 0) ring(doorbell);
}

/// The system call: returns if the word is no longer `word`, on a ring, or at `until`; may return
/// early.
void futex_sleep(Doorbell& doorbell, uint32_t word, Deadline until);

/// Sleeps until the doorbell rings, `until` passes, or `ready()` holds; may return early.
template <class Ready>
void sleep_on(Doorbell& doorbell, Deadline until, const Ready& ready) {
  doorbell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t word = doorbell.word.load(std::memory_order_acquire);
  if (!ready()) futex_sleep(doorbell, word, until);
  doorbell.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace fastcomm
