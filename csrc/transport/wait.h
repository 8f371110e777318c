// Waiting for peers: yield for a bounded time, then sleep on the doorbell. A bounded spin precedes
// both, in Communicator::wait, which keeps its lock meanwhile.
//
// Spinning is right only if every rank has a core: when ranks outnumber cores, the spinner holds
// the core that the awaited peer needs. The slow part of a wait (`check`) runs every few yields and
// after every sleep; it notices deaths, leave notices, poison, deadlines and signals.
#pragma once

#include <sched.h>

#include <algorithm>

#include "core/clock.h"
#include "core/hd.h"
#include "transport/doorbell.h"

namespace fastcomm {

struct WaitPolicy {
  Clock::duration spin;   // at most, before the first yield
  Clock::duration yield;  // at most, before the first sleep
  bool parts = true;      // sleeps at once if the awaited peer seems to share this core
};

/// Policy of a rank; FASTCOMM_SPIN_US overrides the spin.
WaitPolicy wait_policy(bool oversubscribed);

/// The longest sleep in one piece: a change that rings no doorbell is seen within it. Sleeps are
/// shorter at first, a sixteenth of the wait so far, so that any deadline is seen with little
/// delay.
constexpr Clock::duration kLongestSleep = std::chrono::milliseconds(50);
constexpr Clock::duration kShortestSleep = std::chrono::milliseconds(1);

/// Returns when `ready()` holds; `check()` raises to give up. `ready` may do work of its own.
/// `crowded()` is true if the awaited peer seems to share this core. If there may be a free core, a
/// sleep parts the two: at the wake-up the scheduler may move one of them, which it never does at a
/// yield. If ranks outnumber cores there is none, and a yield lets the other go on for a tenth of
/// the cost of a sleep and its wake-up.
template <class Ready, class Check, class Crowded>
void wait_until(const WaitPolicy& policy, Doorbell& doorbell, const Ready& ready,
                const Check& check, const Crowded& crowded) {
  constexpr int kYieldsPerCheck = 8;
  if (ready()) return;
  const auto start = Clock::now();
  while (!(policy.parts && crowded()) && Clock::now() - start < policy.yield) {
    for (int look = 0; look < kYieldsPerCheck; ++look) {
      sched_yield();
      if (ready()) return;
    }
    check();
  }
  for (;;) {
    bool done = false;
    const auto now = Clock::now();
    const auto piece = std::clamp((now - start) / 16, kShortestSleep, kLongestSleep);
    sleep_on(doorbell, now + piece, [&] { return done = ready(); });
    if (done || ready()) return;
    check();
  }
}

}  // namespace fastcomm
