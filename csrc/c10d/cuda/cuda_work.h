// An operation between devices as c10d sees it.
#pragma once

#include "c10d/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <ATen/core/ivalue.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/continuations.h"

namespace fastcomm {

/// Thread-safe. wait() makes the current stream wait and blocks no host thread, unless it is given a timeout:
/// then the host waits, too. It raises why the group has failed, as far as that is known by then; results of
/// failed operations are NaN. The future is complete at once: its value is for streams after the operation.
class CudaWork final : public ::c10d::Work {
 public:
  /// What is known of the call.
  struct Call {
    std::shared_ptr<CudaGroup> group;
    int rank;
    ::c10d::OpType type;
    const char* name;
    std::vector<at::Tensor> value;
    Continuations::Ptr continuations;
  };

  /// `flight` is nullptr for a call that failed before it began.
  CudaWork(Call call, FlightPtr flight);
  /// A call that failed before it began.
  static c10::intrusive_ptr<CudaWork> failed(Call call, const std::exception_ptr& error);

  /// Whether the device has done it, or the group has failed.
  bool isCompleted() override;
  /// Raises CollectiveTimeoutError when `timeout` passes first, which leaves the operation and the group as
  /// they are.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// As wait() without a timeout.
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::vector<at::Tensor> result() override { return call_.value; }
  /// For what users attach to the future.
  const Continuations::Ptr& continuations() const { return call_.continuations; }

 private:
  void end(const std::exception_ptr& error);
  void wait_on_host(Deadline deadline);
  c10::intrusive_ptr<c10::ivalue::Future> make_future();

  const Call call_;
  const FlightPtr flight_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace fastcomm
#endif
