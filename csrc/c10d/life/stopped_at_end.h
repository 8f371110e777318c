// Threads that end with the interpreter. What they let go of may be Python's, and need the GIL: torch aborts
// the process if the interpreter ends meanwhile.
#pragma once

namespace fastcomm {

/// An object with such a thread. Thread-safe.
class StoppedAtEnd {
 public:
  StoppedAtEnd() = default;
  StoppedAtEnd(const StoppedAtEnd&) = delete;
  StoppedAtEnd& operator=(const StoppedAtEnd&) = delete;

  /// Waits for the thread; there is none from here on. Idempotent.
  virtual void stop() = 0;

 protected:
  ~StoppedAtEnd() = default;
  /// The last thing that a constructor does, and the first of a destructor.
  void enlist();
  void delist();
};

/// For the end of the interpreter, without the GIL: stops all.
void stop_watches();

}  // namespace fastcomm
