// What is known of the stock engine, Gloo: how to start it, how to read its errors, and how to wait for
// one of its exchanges without being lost in it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/clock.h"
#include "core/error.h"

namespace fastcomm {

/// Starts the engine's operation, once; where ranks meet, on whichever thread finds that they have. It
/// holds all that the operation needs.
using StartStock = std::function<c10::intrusive_ptr<::c10d::Work>()>;

/// Gloo has one type for all of its errors.
struct EngineError {
  explicit EngineError(const std::exception_ptr& error);
  std::string text;
  ErrorCode code;  // kTimeout or kSystem
};

/// Gloo's send and recv block their caller in wait(), and a wait with a timeout of its own ends all
/// connections of the group when it expires. But abort() lets such a wait return false, once, and
/// harms nothing: a thread of the process does that to every wait that has lasted for a while, so that
/// who waits can look around and wait again.
class WaitSlices {
 public:
  static constexpr Milliseconds kSlice{10};

  /// Waits for `engine` for kSlice, or hardly more, and returns whether it has ended. Raises what it
  /// ended with. Where no thread can be started for this, it waits until the end. Thread-safe.
  static bool wait(::c10d::Work& engine);

 private:
  struct Waiting {
    ::c10d::Work* engine;
    Deadline since;
  };

  static WaitSlices& instance();
  void add(::c10d::Work& engine);
  void remove(::c10d::Work& engine);
  void run();

  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<Waiting> waiting_;
  bool running_ = false;
  bool asleep_ = false;  // the thread, until somebody waits
};

}  // namespace fastcomm
