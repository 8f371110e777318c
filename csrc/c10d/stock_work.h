// An operation that a stock engine does for a native group, as c10d sees it.
//
// Before the engine starts, the ranks meet as for a native operation (Communicator::meet): so a rank
// that is late, dead, gone or calls something else gives the same errors as there, and the engine,
// which would take wrong sizes for data, never sees them. While the engine works, its errors become
// ours: a peer that died is to blame, whatever the engine says.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/continuations.h"
#include "c10d/stock_engine.h"
#include "coll/communicator.h"

namespace fastcomm {

/// Thread-safe. The future's value and result() are the engine's.
class StockWork final : public ::c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Meets; never blocks if `async`. `outputs` are the result where the engine names none; the first
  /// tells the device whose current stream the engine shall find, as it was for the caller.
  static c10::intrusive_ptr<StockWork> start(std::shared_ptr<Communicator> group, const Call& call,
                                             Milliseconds timeout, bool async, ::c10d::OpType type,
                                             const Tensors& outputs,
                                             std::shared_ptr<Continuations> continuations,
                                             StartStock start_stock);

  StockWork(std::shared_ptr<Communicator> group, ::c10d::OpType type, const Tensors& outputs,
            std::shared_ptr<Continuations> continuations, StartStock start_stock);

  /// Raises what the operation ended with; CollectiveTimeoutError when `timeout` passes first, which
  /// leaves the operation and the group as they are.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  Tensors result() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  /// As NativeWork's.
  const std::shared_ptr<Continuations>& continuations() const { return continuations_; }

 private:
  void met(const Operation& operation, const std::exception_ptr& error);
  void watch(const std::shared_ptr<const Operation>& operation);
  /// For an engine without a future: waits as its user would.
  void wait_aside(const Operation& operation);
  void ended(const Operation& operation, const std::exception_ptr& error, const c10::IValue& value);
  void complete(const std::exception_ptr& error, const c10::IValue& value = {});
  void wait_for_engine(Deadline deadline);

  std::shared_ptr<Communicator> group_;
  std::shared_ptr<Operation> operation_;
  Tensors outputs_;
  std::shared_ptr<Continuations> continuations_;
  StartStock start_stock_;
  c10::intrusive_ptr<::c10d::Work> engine_;  // set in met(), before this work can be complete
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  at::ThreadLocalState caller_;
  std::optional<c10::Stream> stream_;
  std::atomic<bool> claimed_{false};  // by whoever completes this work
  uint64_t sequence_ = 0;
};

}  // namespace fastcomm
