// Waiting for peers: yield for a bounded time, then sleep on the doorbell. A bounded spin precedes both, in
// Communicator::wait, which keeps its lock meanwhile.
//
// Spinning is right only where every rank has a core: when ranks outnumber cores, the spinner holds
// the core that the awaited peer needs. The slow part of a wait (`check`) runs every few yields and
// after every sleep; that is where deaths, leave notices, poison, deadlines and signals are noticed.
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
  bool parts = true;      // sleeps at once where what is awaited seems to share this core
};

/// For a rank of `oversubscribed` or not; FASTCOMM_SPIN_US overrides the spin.
WaitPolicy wait_policy(bool oversubscribed);

/// The longest sleep in one piece: a change that rings no doorbell is seen within it. Shorter at first, a
/// sixteenth of the wait so far, so that a deadline is seen with little delay however short it is.
constexpr Clock::duration kLongestSleep = std::chrono::milliseconds(50);
constexpr Clock::duration kShortestSleep = std::chrono::milliseconds(1);

/// Returns when `ready()` holds; `check()` raises to give up. `ready` may do work of its own.
/// `crowded()` tells that what is awaited seems to share this core. Where there may be a free core, sleeping parts the
/// two: the wake-up lets the scheduler move one of them, which a yield never does. Where ranks outnumber cores there is
/// none, and a yield lets the other go on for a tenth of what a sleep and its wake-up cost.
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
