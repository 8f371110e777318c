// A send or a receive of the stock engine in a native group, as c10d sees it.
//
// Two ranks exchange, so there is no meeting: nothing is compared. But who waits learns of a death, a
// failure of the group and Ctrl-C as in every other operation, and the engine's errors become ours.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "c10d/stock_engine.h"
#include "coll/communicator.h"

namespace fastcomm {

/// An exchange, for messages.
struct Exchange {
  const char* name;  // "send" or "recv"
  int peer;          // -1: any
  std::string text;  // "recv(float32, 10 elements) from rank 1, tag 0"
};

/// Thread-safe. As in Gloo, it is complete once somebody has waited for it, and has no future.
class PeerWork final : public ::c10d::Work {
 public:
  /// Raises what a group that has failed raises, and what the engine says of the arguments.
  static c10::intrusive_ptr<::c10d::Work> start(std::shared_ptr<Communicator> group,
                                                Exchange exchange, Milliseconds timeout,
                                                const StartStock& start_stock);

  PeerWork(std::shared_ptr<Communicator> group, Exchange exchange, Milliseconds timeout,
           c10::intrusive_ptr<::c10d::Work> engine);

  /// Raises what the exchange ended with. The group's timeout counts from here, as in Gloo. When
  /// `timeout` passes first, CollectiveTimeoutError, which leaves the exchange and the group as they
  /// are. False if it was aborted.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  int sourceRank() const override { return engine_->sourceRank(); }

 private:
  void wait_in_slices(Deadline deadline);
  void look_around(Deadline deadline, Deadline limit, std::optional<Deadline>& stalled_since);
  void complete(const std::exception_ptr& error);

  std::shared_ptr<Communicator> group_;
  Exchange exchange_;
  Milliseconds timeout_;
  c10::intrusive_ptr<::c10d::Work> engine_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> claimed_{false};  // by whoever completes this work
};

}  // namespace fastcomm
