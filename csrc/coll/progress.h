// The progress engine: one thread that drives the asynchronous operations of all groups of a
// process. It polls every group and blocks inside none, so two groups that are used in opposite
// order on two ranks do not deadlock. It starts with the first asynchronous operation, sleeps on
// the process's doorbell while nothing moves, and runs no code of users.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "transport/doorbell.h"

namespace fastcomm {

class Communicator;

class ProgressEngine {
 public:
  /// Sleeps on `doorbell`, which must be the one that the groups' peers ring, and must outlive the
  /// engine's thread.
  explicit ProgressEngine(Doorbell& doorbell);
  ~ProgressEngine();  // stop()
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  /// Stops the thread after its current round and waits for it. From then on operations move only
  /// while somebody waits for them. For the end of a program: what an operation holds of Python
  /// must not be let go when the interpreter is gone. Idempotent.
  void stop();

  /// Drives the group until it has no pending operation. Raises Error(kSystem) if its thread cannot
  /// be started.
  void add(std::shared_ptr<Communicator> group);

 private:
  struct Shared;
  static void run(Shared& shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace fastcomm
