// Host time: one monotonic clock, deadlines, durations for people.
#pragma once

#include <chrono>

namespace fastcomm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

/// The deadline `timeout` from `start`; a non-positive timeout, and one beyond what the clock counts (292
/// years), mean never.
inline Deadline deadline_after(Milliseconds timeout, Deadline start = Clock::now()) {
  if (timeout.count() <= 0) return Deadline::max();
  // Compared in milliseconds, since more of them may not fit the clock's nanoseconds.
  const auto left = std::chrono::duration_cast<Milliseconds>(Deadline::max() - start);
  return timeout >= left ? Deadline::max() : start + timeout;
}

constexpr Milliseconds kCentury = std::chrono::hours(24 * 36500);

/// The same for Work::wait(): zero is torch's word for no timeout (kNoTimeout), a negative one has passed. Centuries
/// in the past are Python's longest timedelta, which torch's conversion to microseconds has wrapped around.
inline Deadline deadline_of_wait(Milliseconds timeout) {
  const bool passed = timeout.count() < 0 && timeout >= -kCentury;
  return passed ? Clock::now() - Milliseconds(1) : deadline_after(timeout);
}

/// The same timeout for code that adds it to a clock without a look: never is a century.
inline Milliseconds countable(Milliseconds timeout) {
  return timeout.count() <= 0 || timeout > kCentury ? kCentury : timeout;
}

inline double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace fastcomm
