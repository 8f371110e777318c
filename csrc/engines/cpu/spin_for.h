// A bounded look at something that another rank is about to do.
#pragma once

#include <optional>

#include "core/clock.h"
#include "core/hd.h"

namespace fastcomm {

/// Looks for at most this long, unless the awaited peer seems to need this core. The clock is read
/// only after the first looks: what is about to happen happens before that.
template <class Ready, class Crowded>
void spin_for(Clock::duration spin, const Ready& ready, const Crowded& crowded) {
  constexpr int kLooksPerClockRead = 32;
  if (spin.count() <= 0 || crowded()) return;
  std::optional<Deadline> end;
  for (;;) {
    for (int look = 0; look < kLooksPerClockRead; ++look) {
      cpu_relax();
      if (ready()) return;
    }
    const auto now = Clock::now();
    if (!end) end = now + spin;
    if (now >= *end) return;
  }
}

}  // namespace fastcomm
