// A send or a receive through shared memory, as c10d sees it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "c10d/requests/convert.h"
#include "c10d/works/group_work.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

/// Thread-safe. The tensor lives until the operation is done, even if the Work is dropped. The
/// future, whose value is a list of the one tensor, is made by the first getFuture(). From then on
/// the progress thread drives the operation, with or without a waiter.
class PeerWork : public GroupWork {
 public:
  /// Starts the exchange; never blocks. `peer` is PeerCall::kAnyRank for a receive from any rank.
  /// If the group has failed, raises its error.
  static c10::intrusive_ptr<PeerWork> start(std::shared_ptr<Communicator> group,
                                            const at::Tensor& tensor, bool is_send, int peer,
                                            int tag, Milliseconds timeout,
                                            Continuations::Ptr continuations,
                                            const CallRecord& record = {});

  /// `rank` is the caller's in c10d's group, of which `group` may be a part.
  PeerWork(std::shared_ptr<Communicator> group, int rank, const at::Tensor& tensor, bool is_send,
           Milliseconds timeout, Continuations::Ptr continuations);

  /// Before it is posted: told when the peer has come.
  void tell(const CallRecord& record) { record_ = record; }

  /// Also polls the exchange and looks for failures, since there may be no other thread that does.
  bool isCompleted() override;
  /// Drives the exchange until it is done, and raises its error. The group's timeout counts from
  /// here. If `timeout` passes first, raises CollectiveTimeoutError, which leaves the exchange and
  /// the group unchanged. False if it was aborted.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  /// Cancels the exchange if no peer knows of it, else gives the group up.
  void abort() override;
  int sourceRank() const override { return source_.load(std::memory_order_acquire); }
  FuturePtr getFuture() override;
  Tensors result() override { return {tensor_}; }

 protected:
  /// Hands the message to the group; false if a send has to go another way (Communicator::post).
  bool post(int peer, int tag, bool two_ways = false);
  /// The error of this work whose message ended in `error`, and the number of the sender `source`.
  virtual std::exception_ptr error_of(const std::exception_ptr& error) { return error; }
  virtual int number_of(int source) const { return source; }
  /// Completed, and so is the future, if there is one.
  bool is_settled();
  /// Writes back what has been received, and completes. Once.
  void end(std::exception_ptr error, int source);

  const std::shared_ptr<Communicator> group_;
  const bool is_send_;
  std::shared_ptr<PeerOperation> operation_;
  const at::Tensor tensor_;
  const Buffer buffer_;
  const Milliseconds timeout_;
  std::atomic<bool> aborted_{false};

 private:
  CallRecord record_;

  void complete(const PeerOperation& operation, const std::exception_ptr& error);

  std::atomic<int> source_{-1};
  std::mutex future_mutex_;
  FuturePtr future_;             // nullptr until it is asked for
  bool completed_here_ = false;  // complete() has run
};

}  // namespace fastcomm
