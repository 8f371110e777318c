// A kernel's wait for another's flag, bounded by the device's clock and the host's abort word.
//
// Memory ordering. Polls are relaxed: an acquire at each would drop the first-level cache of the
// multiprocessor, which serves the kernels beside the wait, too. One acquire follows the poll that
// saw the flag. It reads the flag again, and gets the value that the poll saw or a later one, since
// loads of one word by one thread never go back. The flag has one writer, which stores each value
// with release (store_flag): so all that the writer did before it stored the awaited value comes
// before what follows the wait.
//
// Device code; also compiled for the host, under the execution shim.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "kernels/channel.h"

namespace fastcomm {

// A wait looks at the clock once per this many polls, and at the abort word, which lies across the
// bus, once per this many nanoseconds.
constexpr uint32_t kPollsPerLook = 32;
constexpr uint64_t kLookEveryNs = 100'000;

FC_DEVICE bool is_aborted(const WaitBounds& bounds) {
  return bounds.abort_word != nullptr && load_relaxed(bounds.abort_word) != 0;
}

/// True if `flag` has reached `target`: all that its writer did before is visible then. False: the
/// bound ran out, the host gave up, or `hopeless()`, which is called as often as the abort word is
/// read.
template <class Hopeless>
FC_DEVICE bool wait_for_flag(const uint32_t* flag, uint32_t target, const WaitBounds& bounds,
                             const Hopeless& hopeless) {
  uint64_t begin = 0;  // 0: the clock has not been read yet
  uint64_t next_look = 0;
  for (uint32_t polls = 1; !reached(load_relaxed(flag), target); ++polls) {
    back_off(polls);
    if (polls % kPollsPerLook != 0) continue;
    const uint64_t now = clock_ns();
    if (begin == 0) begin = now;
    if (now < next_look) continue;
    next_look = now + kLookEveryNs;
    if (now - begin >= bounds.timeout_ns || is_aborted(bounds) || hopeless()) return false;
  }
  return reached(load_flag(flag), target);
}

}  // namespace fastcomm
