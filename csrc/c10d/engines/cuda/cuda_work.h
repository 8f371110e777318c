// An operation between devices as c10d sees it.
#pragma once

#include "c10d/engines/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <memory>

#include "c10d/works/group_work.h"

namespace fastcomm {

/// Thread-safe. wait() makes the current stream wait and blocks no host thread, unless it is given
/// a timeout: then the host waits, too. It raises the failure of the group, if it is known by then;
/// results of failed operations are NaN. The future is complete at once: its value is for streams
/// after the operation.
class CudaWork final : public GroupWork {
 public:
  /// Description of the call.
  struct Call {
    std::shared_ptr<CudaGroup> group;
    int rank;
    ::c10d::OpType type;
    const char* name;
    Tensors value;
    Continuations::Ptr continuations;
  };

  /// `flight` is nullptr for a call that failed before it began.
  CudaWork(Call call, FlightPtr flight);
  /// A call that failed before it began.
  static c10::intrusive_ptr<CudaWork> failed(Call call, const std::exception_ptr& error);

  /// True if the device has done it, or the group has failed.
  bool isCompleted() override;
  /// Raises CollectiveTimeoutError if `timeout` passes first, which leaves the operation and the
  /// group unchanged.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  /// With the flight, which the group watches: the work may be dropped before that ends.
  void end_with(const CallEnd& end) override {
    flight_ == nullptr ? GroupWork::end_with(end) : flight_->end_with(end);
  }
  FuturePtr getFuture() override;
  Tensors result() override { return call_.value; }

 private:
  void end(const std::exception_ptr& error);
  void wait_on_host(Deadline deadline);
  FuturePtr future_of_flight();

  const Call call_;
  const FlightPtr flight_;
  std::mutex future_mutex_;
  FuturePtr future_;
};

}  // namespace fastcomm
#endif
