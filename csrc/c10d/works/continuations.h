// Continuations: code that users attach to the futures of a group's operations.
//
// They run on a thread of their own, so they may wait for anything that the group does: progress
// depends on no user code. They start in the order in which they were attached, each when the
// previous one has returned, however soon their operations end; if ranks attach in the same order,
// as they issue operations, they continue in the same order.
//
// A child of fork() has no such thread, and a thread of its parent may have held a lock here when
// it was made: there no lock of the parent's is taken, and steps run where their futures complete.
//
// Continuations attached by a continuation run on a further thread, one level deeper: it may wait
// for them, too. The calls of a continuation take a communicator of their own (communicators.h).
#pragma once

#include <ATen/core/ivalue.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "core/clock.h"

namespace fastcomm {

/// A queue of one group's continuations, or of those attached by another queue's. Thread-safe.
class Continuations : public std::enable_shared_from_this<Continuations> {
 public:
  using Ptr = std::shared_ptr<Continuations>;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  using Step = std::function<void()>;

  /// Position of code in the order of its calls: in no continuation (depth 0), or the depth in
  /// those of a group. A thread has a position of its own, unless it works for another thread
  /// (Standing).
  struct Position {
    std::weak_ptr<Continuations> group;  // its queue
    int depth = 0;
  };
  static Position here();
  /// True if here().depth may be other than 0: cheaper.
  static bool is_inside();

  /// For continuations that the calling thread attaches: one deeper than the one that it runs; else
  /// `own`.
  static Ptr of_this_thread(const Ptr& own);
  /// The position of continuations that it attaches.
  static Position next(const Ptr& own);

  /// A group's.
  static Ptr create();
  /// The queue that completes futures that C++ sees: other code may hang on them, which must not
  /// run on a thread that makes progress, and which no continuation should have to wait for.
  Ptr relays();

  /// Runs `step`, standing at `position`, after all that were added before, once `awaited` is
  /// complete. The thread starts with the first step. Raises Error(kSystem) if it cannot be
  /// started.
  void add(FuturePtr awaited, Position position, Step step);

  /// The thread ends when it has nothing left to run; a later step starts it again. Idempotent.
  void close();
  /// Waits until a closed queue has nothing left to run; false if it is not closed, or at
  /// `deadline`.
  bool drained(Deadline deadline);

 private:
  struct Entry {
    FuturePtr awaited;
    Position position;
    Step step;
  };

  Continuations();
  /// True in a child of the process that made it.
  bool forked() const;
  Ptr deeper();
  Ptr made(Ptr& queue);
  void run();

  const pid_t made_in_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  Ptr deeper_, relays_;
  bool running_ = false;  // there is a thread
  bool closed_ = false;
};

/// While it lives, the calling thread stands at another's position.
class Standing {
 public:
  explicit Standing(Continuations::Position position);
  ~Standing();
  Standing(const Standing&) = delete;
  Standing& operator=(const Standing&) = delete;

 private:
  Continuations::Position before_;
};

/// For the end of the interpreter: no continuation starts any more, and running ones have some time
/// to return. Call it again after their awaited operations have been ended.
void stop_continuations();

}  // namespace fastcomm
