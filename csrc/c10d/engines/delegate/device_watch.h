// The death watch of a backend for tensors on a device.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "c10d/engines/delegate/delegate.h"
#include "c10d/engines/delegate/delegate_work.h"
#include "c10d/life/watch.h"
#include "core/clock.h"
#include "core/standstill.h"

namespace fastcomm {

/// Kernels wait for ever for a peer that died, maybe with nobody waiting for them on the host.
/// While a backend has operations under way, a thread checks for a peer that has died, left or
/// given the group up, for a failure of the group, and for operations that have had their time; if
/// so, the backend is ended, and all its operations end in the error. To know which have ended it
/// asks the backend, and so the device's driver, where another thread may wait for the device: a
/// second thread asks only the host, and acts if the first one does not come back. Thread-safe; all
/// that threads share is under the locks.
class DeviceWatch {
 public:
  struct Watched {
    const Delegate::Subject subject;
    const Milliseconds timeout;
    const Deadline since = Clock::now();
    WaitWarning warning{since};
    c10::intrusive_ptr<DelegateWork> work;  // nullptr while it is being submitted

    Watched(Delegate::Subject about, Milliseconds limit)
        : subject(std::move(about)), timeout(limit) {}
  };
  using Entry = std::shared_ptr<Watched>;

  explicit DeviceWatch(std::shared_ptr<Delegate> delegate);

  /// Called before an operation is submitted, which may wait for peers itself. Raises
  /// Error(kSystem).
  Entry begin(const Delegate::Subject& subject, Milliseconds timeout);
  /// Watches it until it ends.
  void follow(const Entry& entry, const c10::intrusive_ptr<DelegateWork>& work);
  void drop(const Entry& entry);
  /// Returns once nothing is under way: all operations and their works have ended, or the group has
  /// failed. Raises the exceptions of g_interrupt_check.
  void drain();

 private:
  /// Time to end for operations in which a rank that left in order has taken part.
  static constexpr Milliseconds kLeaverGrace{2000};

  /// Time after which a look that does not end is taken to wait in the driver.
  static constexpr Milliseconds kStuck{300};
  /// Time for a rank that left in order, where nobody can tell which operations have ended.
  static constexpr Milliseconds kStuckGrace{10'000};

  /// Looks of the two threads; false if nothing is under way.
  bool look_at_device();
  bool look_at_host();
  /// An entry and its work, as seen in one look.
  using Seen = std::vector<std::pair<Entry, c10::intrusive_ptr<DelegateWork>>>;
  Seen seen();
  /// `grace` is the time to end for operations in which a rank that left in order has taken part.
  void look(const Seen& pending, Milliseconds grace);
  /// The reason why these cannot go on; nullptr while they can.
  std::exception_ptr failure_of(const Seen& pending, Milliseconds grace);
  /// The ranks whose leaving in order keeps these from ending, by bits.
  static uint64_t awaited(const Seen& pending, Milliseconds grace);

  const std::shared_ptr<Delegate> delegate_;
  std::mutex mutex_;
  std::vector<Entry> watched_;             // under mutex_
  std::mutex looking_;                     // after mutex_
  std::optional<Deadline> stalled_since_;  // under looking_
  std::atomic<uint64_t> asked_{0};         // rounds in which the backend has answered
  Standstill standstill_;                  // of these; the second thread's own
  Watch device_, host_;                    // last: they use the others until they have ended
};

}  // namespace fastcomm
