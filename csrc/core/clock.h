// Host time: one monotonic clock, deadlines, durations in words.
#pragma once

#include <chrono>

namespace fastcomm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

/// The deadline `timeout` after `start`. A timeout that is not positive, or beyond the clock's
/// range (292 years), means never.
inline Deadline deadline_after(Milliseconds timeout, Deadline start = Clock::now()) {
  if (timeout.count() <= 0) return Deadline::max();
  // Compared in milliseconds, since a longer timeout may not fit the clock's nanoseconds.
  const auto left = std::chrono::duration_cast<Milliseconds>(Deadline::max() - start);
  return timeout >= left ? Deadline::max() : start + timeout;
}

constexpr Milliseconds kCentury = std::chrono::hours(24 * 36500);

/// The same for Work::wait(): zero is torch's value for no timeout (kNoTimeout), and a negative one
/// has passed. Less than minus a century is Python's longest timedelta, which torch's conversion to
/// microseconds has wrapped around.
inline Deadline deadline_of_wait(Milliseconds timeout) {
  const bool passed = timeout.count() < 0 && timeout >= -kCentury;
  return passed ? Clock::now() - Milliseconds(1) : deadline_after(timeout);
}

/// The same timeout for code that adds it to a clock unchecked: a century stands for never.
inline Milliseconds countable(Milliseconds timeout) {
  return timeout.count() <= 0 || timeout > kCentury ? kCentury : timeout;
}

inline double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace fastcomm
