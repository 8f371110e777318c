// One thread that sleeps on the pidfds of all peer processes and reports their deaths.
//
// The kernel makes a pidfd readable when the process is gone, no matter what killed it or who still
// holds its sockets. The thread never touches Python and is never joined while a peer lives.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/shm/segment.h"

namespace fastcomm {

class DeathWatch {
 public:
  /// `on_death` runs on the watching thread, each time after the flag of the death is set.
  explicit DeathWatch(std::function<void()> on_death);
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  /// Sets `*dead` when the process of `pidfd` is gone. The watch ends, and the descriptor is
  /// closed, when nobody else holds `dead` any more.
  void watch(Fd pidfd, std::shared_ptr<std::atomic<bool>> dead);
  /// Lets the thread look for watches that are no longer needed.
  void prune();

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace fastcomm
