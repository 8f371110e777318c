// Continuations: what users attach to the futures of a group's operations.
//
// They run on a thread of their own, so they may wait for anything that the group does: progress depends
// on no user code. They start in the order in which they were attached, the next when the former has
// returned, however soon their operations end; where ranks attach in the same order, as they issue
// operations, they continue in the same order.
//
// What a continuation attaches to runs on a further thread, one deeper: it may wait for that, too. What
// it issues takes a lane (lane.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace fastcomm {

/// The continuations of one group, or of those of another queue. Thread-safe.
class Continuations : public std::enable_shared_from_this<Continuations> {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  using Step = std::function<void()>;

  /// Where a thread is: in no continuation (depth 0), or in one of a group's.
  struct Place {
    uint64_t group = 0;  // the number of its queue
    int depth = 0;
  };
  static Place here();

  /// The queue for what the calling thread attaches: one deeper than that of the continuation it runs;
  /// outside of continuations `own`.
  static std::shared_ptr<Continuations> of_this_thread(const std::shared_ptr<Continuations>& own);

  /// A group's.
  static std::shared_ptr<Continuations> create();

  /// Runs `step` behind all that were added before, once `awaited` is complete. The thread starts with
  /// the first. `step` must not throw. Raises Error(kSystem) if the thread cannot be started.
  void add(FuturePtr awaited, Step step);

  /// The thread ends when it has nothing left to run; what comes later starts it again. Idempotent.
  void close();

  /// Different for each group of the process.
  uint64_t group() const { return place_.group; }

 private:
  struct Entry {
    FuturePtr awaited;
    Step step;
  };

  explicit Continuations(Place place) : place_(place) {}
  std::shared_ptr<Continuations> deeper();
  void run();

  const Place place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  std::shared_ptr<Continuations> deeper_;
  bool running_ = false;  // there is a thread
  bool closed_ = false;
};

/// For the end of the interpreter: no continuation starts any more, and those that run have some time to
/// return. Idempotent.
void stop_continuations();

}  // namespace fastcomm
