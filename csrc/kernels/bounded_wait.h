// How a thread of a kernel waits for a flag: for a bounded time, and until the host gives up.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "kernels/channel.h"

namespace fastcomm {

// A wait looks at the clock once in this many polls, and at the abort word, which lies across the
// bus, once in this many nanoseconds.
constexpr uint32_t kPollsPerLook = 32;
constexpr uint64_t kLookEveryNs = 100'000;

FC_DEVICE bool is_aborted(const WaitBounds& bounds) {
  return bounds.abort_word != nullptr && load_relaxed(bounds.abort_word) != 0;
}

/// True if `flag` has reached `target`: what its writer did before is visible then. False: the bound
/// ran out, the host gave up, or `hopeless()`, which is asked as often as the abort word.
template <class Hopeless>
FC_DEVICE bool wait_for_flag(const uint32_t* flag, uint32_t target, const WaitBounds& bounds,
                             const Hopeless& hopeless) {
  uint64_t begin = 0;  // 0: the clock has not been read yet
  uint64_t next_look = 0;
  for (uint32_t polls = 1; !reached(load_flag(flag), target); ++polls) {
    FC_YIELD();
    if (polls % kPollsPerLook != 0) continue;
    const uint64_t now = clock_ns();
    if (begin == 0) begin = now;
    if (now < next_look) continue;
    next_look = now + kLookEveryNs;
    if (now - begin >= bounds.timeout_ns || is_aborted(bounds) || hopeless()) return false;
  }
  return true;
}

}  // namespace fastcomm
