// Waits for Gloo's sends and receives that return to their caller now and then.
#pragma once

#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/clock.h"

namespace fastcomm {

/// Gloo's send and recv block their caller in wait(), and a wait with its own timeout ends all
/// connections of the group when it expires. But abort() makes such a wait return false, once,
/// without harm: a thread of the process aborts every wait that has lasted for a while, so that the
/// caller can look around and wait again.
class WaitSlices {
 public:
  static constexpr Milliseconds kSlice{10};

  /// Waits for `work` for kSlice, or hardly longer, and returns true if it has ended. Raises its
  /// error. If no thread can be started for this, it waits until the end. Thread-safe.
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
