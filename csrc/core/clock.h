// Host time: one monotonic clock, deadlines, durations for people.
#pragma once

#include <chrono>

namespace fastcomm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

/// The deadline `timeout` from now; a non-positive timeout means never.
inline Deadline deadline_after(Milliseconds timeout) {
  return timeout.count() <= 0 ? Deadline::max() : Clock::now() + timeout;
}

inline double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace fastcomm
