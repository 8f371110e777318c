// How to wait for Gloo's sends and receives without being lost in them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/clock.h"

namespace fastcomm {

/// Gloo's send and recv block their caller in wait(), and a wait with its own timeout ends all
/// connections of the group when it expires. But abort() makes such a wait return false, once, and
/// does no harm: a thread of the process does that to every wait that has lasted for a while, so that
/// the waiting caller can look around and wait again.
class WaitSlices {
 public:
  static constexpr Milliseconds kSlice{10};

  /// Waits for `work` for kSlice, or hardly longer, and returns whether it has ended. Raises what it
  /// ended with. Where no thread can be started for this, it waits until the end. Thread-safe.
  static bool wait(::c10d::Work& work);

 private:
  struct Waiting {
    ::c10d::Work* work;
    Deadline since;
  };

  static WaitSlices& instance();
  void add(::c10d::Work& work);
  void remove(::c10d::Work& work);
  void run();

  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<Waiting> waiting_;
  bool running_ = false;
  bool asleep_ = false;  // the thread, until there is a wait
};

}  // namespace fastcomm
