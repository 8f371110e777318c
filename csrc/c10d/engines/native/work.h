// A native operation as c10d sees it.
#pragma once

#include <memory>

#include "c10d/requests/prepared.h"
#include "c10d/works/group_work.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

/// Thread-safe. The tensors live until the operation is done, even if the Work is dropped. The
/// future's value is a list of tensors, complete when the future is; errors come out of wait(), of
/// the future and of exception(), each with its own type. Nothing that may block may be attached to
/// the future itself: the thread that drives the operation completes it. Python gets another
/// (bindings/futures.cpp).
class NativeWork final : public GroupWork {
 public:
  /// Description of the call, besides the objects that it holds.
  struct About {
    int rank;
    ::c10d::OpType type;
    Tensors value;  // the future's
    Continuations::Ptr continuations;
  };

  /// Starts the operation; never blocks.
  static c10::intrusive_ptr<NativeWork> start(std::shared_ptr<Communicator> group, const Call& call,
                                              Milliseconds timeout, Held&& held, About&& about);
  /// A synchronous operation that failed.
  static c10::intrusive_ptr<NativeWork> failed(const std::exception_ptr& error, Held&& held,
                                               About&& about);

  NativeWork(std::shared_ptr<Communicator> group, Held&& held, About&& about);

  /// Whoever sees it finds the future complete.
  bool isCompleted() override { return Work::isCompleted() && future_->completed(); }
  /// Helps until the operation is done. Raises its error; CollectiveTimeoutError if `timeout`
  /// passes first, which leaves the operation and the group unchanged.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  FuturePtr getFuture() override { return future_; }
  Tensors result() override { return value_; }
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void complete(const std::exception_ptr& error);

  std::shared_ptr<Communicator> group_;
  std::shared_ptr<Operation> operation_;
  const Held held_;
  const Tensors value_;
  const FuturePtr future_ = make_future();
  uint64_t sequence_ = 0;
};

}  // namespace fastcomm
