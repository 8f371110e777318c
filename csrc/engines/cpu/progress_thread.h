// The progress thread: one thread that drives the asynchronous operations of all groups of a
// process. It polls every group and blocks inside none, so two groups that are used in opposite
// order on two ranks do not deadlock. It starts with the first asynchronous operation. It sleeps on
// the process's doorbell while nothing moves, and on one of its own while nothing is pending: peers
// need not ring for it then. It runs no code of users.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "transport/doorbell.h"

namespace fastcomm {

/// A group, as driven by the thread.
class Driven {
 public:
  virtual ~Driven() = default;

  /// True if operations are queued.
  virtual bool pending() const = 0;
  /// Runs the steps that the peers are ready for; true if anything moved. Never waits. The first
  /// operation is polled for `spin` before this returns.
  virtual bool poll(Clock::duration spin) = 0;
  /// Looks for deaths, leave notices, poison and deadlines. Never blocks.
  virtual void examine() = 0;
  /// True to continue watching. Idle groups are forgotten after a while.
  virtual bool keep_watching() = 0;
};

class ProgressThread {
 public:
  /// Sleeps on `doorbell`, which the groups' peers ring, and which must outlive the thread.
  explicit ProgressThread(Doorbell& doorbell) : doorbell_(doorbell) {}
  ~ProgressThread() { stop(); }
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Stops the thread after its current round and waits for it. From then on operations move only
  /// while a thread waits for them. For the end of a program: Python objects that an operation
  /// holds must not be released when the interpreter is gone. Idempotent.
  void stop();

  /// Drives the group until it has no pending operation. Raises Error(kSystem) if its thread cannot
  /// be started.
  void add(std::shared_ptr<Driven> group);
  /// Checks every millisecond for pending work of the group, and then drives it, for as long as the
  /// group wants it (Driven::keep_watching). So a call whose thread comes to wait for it at once
  /// need not wake the thread. Raises like add().
  void watch(const std::shared_ptr<Driven>& group);
  /// True while it may be asleep in a group, or is about to be: then only add() is noticed at once.
  /// Work that a caller made pending before it sees false will be seen.
  bool busy() const { return busy_.load(std::memory_order_seq_cst); }

 private:
  /// Calls `enlist` with the lock, and wakes the thread.
  template <class Enlist>
  void wake_with(const Enlist& enlist);
  void start();  // with the lock
  void run();
  /// The groups with something pending.
  std::vector<std::shared_ptr<Driven>> to_drive();

  Doorbell& doorbell_;
  Doorbell idle_bell_{};  // while there are no groups
  std::mutex mutex_;      // guards the members below, except for the atomic ones
  std::vector<std::shared_ptr<Driven>> groups_;
  std::vector<std::weak_ptr<Driven>> watched_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> changed_{false};  // `groups_` grew, or the progress thread is to stop
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fastcomm
