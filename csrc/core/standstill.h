// Tells a count that moves from one that has stopped.
#pragma once

#include <cstdint>
#include <optional>

#include "core/clock.h"

namespace fastcomm {

/// One thread at a time.
class Standstill {
 public:
  /// Time for which `count` has been seen unchanged, up to `now`.
  Clock::duration lasts(uint64_t count, Clock::time_point now) {
    if (!seen_ || seen_->count != count) seen_ = Seen{count, now};
    return now - seen_->since;
  }
  void reset() { seen_.reset(); }

 private:
  struct Seen {
    uint64_t count;
    Clock::time_point since;
  };
  std::optional<Seen> seen_;
};

}  // namespace fastcomm
