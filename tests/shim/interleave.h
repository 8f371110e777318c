// Only in tests (FC_SHIM): yields the processor at random, so that one test run
// sees many orders of events. The generator of each thread follows from interleave_seed.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace fastcomm {

/// Set before a run, from a test's command line. 0: no interleaving.
inline std::atomic<uint64_t> interleave_seed{0};

/// Called at flag operations and barriers; yields about once in four calls.
inline void interleave() {
  static std::atomic<uint64_t> threads{0};
  thread_local uint64_t state =
      threads.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15u;
  const uint64_t seed = interleave_seed.load(std::memory_order_relaxed);
  if (seed == 0) return;
  state = (state ^ seed) * 6364136223846793005u + 1442695040888963407u;
  if ((state >> 62) == 0) sched_yield();
}

/// Between two polls of a wait: yields at first, and sleeps from the thousandth poll on. Threads
/// that only yield take the processors from those that they wait for, and from tests beside them.
inline void yield_or_sleep(uint32_t polls) {
  constexpr uint32_t kWithoutSleep = 1000;
  constexpr timespec kSleep{0, 20'000};
  polls < kWithoutSleep ? sched_yield() : nanosleep(&kSleep, nullptr);
}

}  // namespace fastcomm

#define FC_INTERLEAVE() ::fastcomm::interleave()
#define FC_YIELD(polls) ::fastcomm::yield_or_sleep(polls)
