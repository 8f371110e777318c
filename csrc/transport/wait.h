// Waiting for peers: spin for a bounded time, then yield, then sleep on the doorbell.
//
// Spinning is right only where every rank has a core: when ranks outnumber cores, the spinner holds
// the core that the awaited peer needs. The slow part of a wait (`check`) runs every few yields and
// after every sleep; that is where deaths, goodbyes, poison, deadlines and signals are noticed.
#pragma once

#include <sched.h>

#include "core/clock.h"
#include "core/hd.h"
#include "transport/doorbell.h"

namespace fastcomm {

struct WaitPolicy {
  Clock::duration spin;   // at most, before the first yield
  Clock::duration yield;  // at most, before the first sleep
};

/// For a rank of `oversubscribed` or not; FASTCOMM_SPIN_US overrides the spin.
WaitPolicy wait_policy(bool oversubscribed);

/// The longest sleep in one piece: what is told by no ring is seen within it.
constexpr auto kLongestSleep = std::chrono::milliseconds(50);

/// Returns when `ready()` holds; `check()` raises to give up. `ready` may do work of its own.
template <class Ready, class Check>
void wait_until(const WaitPolicy& policy, Doorbell& doorbell, const Ready& ready,
                const Check& check) {
  constexpr int kLooksPerClockRead = 64;
  if (ready()) return;
  const auto start = Clock::now();
  while (policy.spin.count() > 0) {
    for (int look = 0; look < kLooksPerClockRead; ++look) {
      if (ready()) return;
      cpu_relax();
    }
    if (Clock::now() - start > policy.spin) break;
  }
  const auto spun = Clock::now();
  do {
    for (int look = 0; look < kLooksPerClockRead / 8; ++look) {
      sched_yield();
      if (ready()) return;
    }
    check();
  } while (Clock::now() - spun < policy.yield);
  for (;;) {
    bool done = false;
    sleep_on(doorbell, Clock::now() + kLongestSleep, [&] { return done = ready(); });
    if (done || ready()) return;
    check();
  }
}

}  // namespace fastcomm
