// The engine of ranks with a device each, in a process each, whose devices reach each other's
// memory, or pinned memory of the host.
//
// Each request becomes calls (c10d/requests/calls.h), which are enqueued on the device; the device
// does the rest (engines/cuda/peer_collectives.h).
#pragma once

#include "c10d/engines/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "c10d/engines/cuda/cuda_work.h"
#include "c10d/engines/engine.h"
#include "c10d/life/watch.h"

namespace fastcomm {

/// Progress: of the devices, and of two threads that look after them: one asks the device which
/// operations have passed, and the host for deaths and failures; the other asks the host alone, so
/// that a rank's death is seen while a thread of this process waits in CUDA's driver. Synchronous
/// operations run on the caller's current stream, asynchronous ones on the group's own stream, all
/// in the order in which they were issued. Can be captured into graphs.
class CudaEngine final : public Engine {
 public:
  /// `out_of_band` serves to add memory.
  CudaEngine(std::shared_ptr<CudaGroup> group, std::unique_ptr<PoolOutOfBand> out_of_band,
             GroupContext context);
  /// As leave(); a Work of the group that is still held keeps no window.
  ~CudaEngine() override;

  std::string name() const override {
    return group_->options().home == WindowHome::kDevices ? "peer-to-peer" : "pinned memory";
  }
  bool is_native() const override { return true; }
  bool is_on_devices() const override { return true; }
  /// Calls with a kernel, with dense tensors on the group's device.
  bool takes(const Request& request) const override;
  bool takes(const Query& query) const override;
  Selection explain(const Query& query) const override;
  WorkPtr submit(const Request& request) override;
  uint64_t submitted() const override { return calls_; }
  uint64_t next_number() const override { return group_->next_number(); }

  std::exception_ptr failure() const override { return group_->failure(); }
  void fail(const std::exception_ptr& why) override { group_->note(why); }
  void abort() override;
  void leave(const std::string& how) override;
  void abandon() override;
  at::Tensor shared_empty(at::IntArrayRef sizes, at::ScalarType dtype, std::string& why) override;

 private:
  /// True if kernels can move all of them; and reduce them.
  bool moves(at::TensorList tensors) const;
  bool reduces(at::TensorList tensors, const ::c10d::ReduceOp& op) const;
  /// The way of such an operation, on all ranks alike.
  Algorithm path_of(const Call& call) const;
  void wake();
  /// `is_last` of its request: calls end in order, so its work stands for all.
  WorkPtr enqueue(const Request& request, Prepared made, bool is_last);

  const std::shared_ptr<CudaGroup> group_;
  const std::unique_ptr<PoolOutOfBand> out_of_band_;
  std::array<std::unique_ptr<Watch>, 2> watches_;
  std::set<std::pair<DType, ReduceOp>> kernels_;  // for reductions
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> left_{false};
};

}  // namespace fastcomm
#endif
