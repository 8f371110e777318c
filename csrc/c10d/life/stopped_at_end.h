// Threads that end with the interpreter. They may release Python objects, and need the GIL for
// that: torch aborts the process if the interpreter ends meanwhile.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fastcomm {

/// An object with such a thread, which starts when it is first needed. Thread-safe.
class StoppedAtEnd {
 public:
  StoppedAtEnd(const StoppedAtEnd&) = delete;
  StoppedAtEnd& operator=(const StoppedAtEnd&) = delete;

  /// Waits for the thread, which may need the GIL; there is none from here on. Idempotent.
  void stop();

 protected:
  StoppedAtEnd();
  ~StoppedAtEnd() = default;
  /// Must be the first call of a destructor: nothing else stops the thread from here on, and it has
  /// ended.
  void end();
  /// True if the thread is still to be started; with mutex_.
  bool needs_thread() const { return !stop_ && !thread_.joinable(); }
  /// Starts it; with mutex_. Raises like start_thread.
  void start(const std::string& problem);
  /// Body of the thread. Returns soon after stop_, for which changed_ is notified.
  virtual void run() = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;

 private:
  std::thread thread_;
};

/// Raises Error(kSystem) if no thread can be started: `problem`, the cause, and advice.
std::thread start_thread(const std::string& problem, std::function<void()> body);

/// For the end of the interpreter, without the GIL: stops all.
void stop_watches();

}  // namespace fastcomm
