// The failures of a group over several hosts, between its two parts: the ranks of this host, and
// the backend that serves the group as a whole.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "c10d/engines/delegate/delegate.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

/// Thread-safe. Works hold it, and outlive the engine.
class HostFailures {
 public:
  HostFailures(std::shared_ptr<Delegate> whole, std::shared_ptr<Communicator> inside)
      : whole_(std::move(whole)), inside_(std::move(inside)) {}

  /// The error of `subject`, an operation that ended with `error`. The group has been given up, but
  /// for an error that says that it was left.
  std::exception_ptr of(Delegate::Subject subject, const std::exception_ptr& error) const;
  /// Tells this host's ranks of the group's failure, which they may not hear of in another way, and
  /// ends what goes on among them.
  void tell_inside(const char* operation, const std::exception_ptr& failure) const;
  /// This rank leaves: what ends because of that is no failure.
  void leave() { leaving_.store(true, std::memory_order_release); }
  bool is_leaving() const { return leaving_.load(std::memory_order_acquire); }

 private:
  const std::shared_ptr<Delegate> whole_;
  const std::shared_ptr<Communicator> inside_;
  std::atomic<bool> leaving_{false};
};

}  // namespace fastcomm
