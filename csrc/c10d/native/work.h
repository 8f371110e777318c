// A native operation as c10d sees it.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/calls/payload.h"
#include "c10d/continuations.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

/// Thread-safe. The tensors live until the operation is done, whoever lets go of the Work. The
/// future's value is a list of tensors, complete when the future is; errors come out of wait(), of
/// the future and of exception(), each with its own type. Nothing that may block may be attached to
/// the future itself: it is completed by whoever drives the operation. Python gets another (bindings/futures.cpp).
class NativeWork final : public ::c10d::Work {
 public:
  /// Starts the operation; never blocks.
  static c10::intrusive_ptr<NativeWork> start(std::shared_ptr<Communicator> group, const Call& call,
                                              Milliseconds timeout, Payload payload,
                                              std::shared_ptr<Continuations> continuations);
  /// A synchronous operation that failed.
  static c10::intrusive_ptr<NativeWork> failed(int rank, Payload payload,
                                               const std::exception_ptr& error,
                                               std::shared_ptr<Continuations> continuations);

  NativeWork(std::shared_ptr<Communicator> group, int rank, Payload payload,
             std::shared_ptr<Continuations> continuations);

  /// Helps until the operation is done. Raises its error; CollectiveTimeoutError when `timeout`
  /// passes first, which leaves the operation and the group as they are.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return payload_.value; }
  uint64_t getSequencenumber() const override { return sequence_; }
  /// The group's, for what users attach to the future.
  const std::shared_ptr<Continuations>& continuations() const { return continuations_; }

 private:
  void complete(const std::exception_ptr& error);

  std::shared_ptr<Communicator> group_;
  std::shared_ptr<Operation> operation_;
  Payload payload_;
  std::shared_ptr<Continuations> continuations_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  uint64_t sequence_ = 0;
};

}  // namespace fastcomm
