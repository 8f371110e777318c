// Threads that look after something, and end with the interpreter. They may release Python objects,
// and need the GIL for that: torch aborts the process if the interpreter ends meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/thread_name.h"

namespace fastcomm {

/// Such a thread, which starts when it is first needed. Looks again and again while there is
/// something to look after, and sleeps otherwise. Thread-safe.
class Watch {
 public:
  /// `look` raises nothing; false if there is nothing to look after.
  Watch(ThreadName name, std::function<bool()> look);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// As stop().
  ~Watch();

  /// Called before something begins, to have a thread, and afterwards, to have it seen; or once, if
  /// it begins under a lock that looks take. Raises Error(kSystem) if no thread can be started;
  /// `front` begins its text.
  void wake(const std::string& front = "") {
    // The thread clears the word and then looks, under a lock. If it has not seen what began before
    // this call, it had that lock first: so this exchange finds the word cleared, and wakes it.
    // Otherwise it has seen it, and looks again.
    if (!awake_.exchange(true, std::memory_order_acq_rel)) rouse(front);
  }
  /// Waits for the thread, which may need the GIL; there is none from here on. Idempotent.
  void stop();
  bool has_stopped();

 private:
  static constexpr std::chrono::milliseconds kLook{20};

  void rouse(const std::string& front);
  void run();

  const ThreadName name_;
  const std::function<bool()> look_;
  std::atomic<bool> awake_{false};
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

/// Raises Error(kSystem) if no thread can be started: `problem`, the cause, and advice.
std::thread start_thread(const std::string& problem, std::function<void()> body);

/// For the end of the interpreter, without the GIL: stops all.
void stop_watches();

}  // namespace fastcomm
