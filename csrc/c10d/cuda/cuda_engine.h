// The engine of ranks with a device each, in a process each, whose devices reach each other's memory, or
// pinned memory of the host.
//
// Each operation is checked and made a Call (c10d/calls/), and enqueued on the device, which does the rest
// (engines/cuda/peer_collectives.h). A call without a kernel goes to another engine as a whole, based on
// what all ranks know of it.
#pragma once

#include "c10d/cuda/cuda_group.h"
#if defined(FC_DEVICES)
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "c10d/coalescing.h"
#include "c10d/cuda/cuda_watch.h"
#include "c10d/cuda/cuda_work.h"
#include "c10d/engine.h"

namespace fastcomm {

/// Progress: of the devices, and of one thread that looks after them. Synchronous operations run on the
/// caller's current stream, asynchronous ones on the group's own stream, all in the order in which they
/// were issued. Can be captured into graphs.
class CudaEngine final : public Engine {
 public:
  /// `other` takes what this does not, and outlives it; `hosts` meet to add memory.
  CudaEngine(std::shared_ptr<CudaGroup> group, Engine& other, std::unique_ptr<PoolHosts> hosts,
             int rank, int size, c10::intrusive_ptr<Options> options,
             Continuations::Ptr continuations);
  /// As leave(): a Work of the group that is still held keeps no window.
  ~CudaEngine() override;

  std::string name() const override {
    return group_->options().place == WindowPlace::kDevices ? "peer-to-peer" : "pinned memory";
  }
  bool is_native() const override { return true; }
  const Engine& serving(const Query& query) const override;
  Selection explain(const Query& query) const override;
  std::exception_ptr failure() const override { return group_->failure(); }
  at::Tensor shared_empty(at::IntArrayRef sizes, at::ScalarType dtype, std::string& why) override;
  void fail(const std::exception_ptr& why) override { group_->note(why); }
  void leave(const std::string& how) override;
  void abort() override;
  void abandon() override;
  bool coalescing() const override { return coalescing_.open(); }
  uint64_t getSequenceNumberForGroup() override { return calls_; }

  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const ::c10d::ScatterOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& opts) override;
  /// fused.cpp. Nothing unless all are dense and on the group's device.
  std::optional<Fused> fused_reduce(const Tensors& gradients, const GradientOptions& options,
                                    std::optional<Milliseconds> timeout, bool async) override;
  std::optional<Fused> gather_shards(const Tensors& tensors,
                                     const std::vector<ShardOffsets>& shards,
                                     std::optional<Milliseconds> timeout, bool async) override;
  /// What this thread issues in between is asynchronous, and done when the work is that ends the block.
  void startCoalescing() override { coalescing_.begin(); }
  WorkPtr endCoalescing() override;

  // There is no kernel for it: each rank knows only its own sizes.
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override {
    return elsewhere(other_.allreduce_sparse(tensors, opts));
  }

 private:
  Site site() const { return {getRank(), getSize(), Place::kWhereItIs}; }
  /// Whether all of them can be moved by kernels, and reduced.
  bool moves(const Tensors& tensors) const;
  bool reduces(const Tensors& tensors, const ::c10d::ReduceOp& op) const;
  bool reduces(DType dtype, ReduceOp op) const { return kernels_.count({dtype, op}) != 0; }

  WorkPtr submit(Prepared made, Milliseconds timeout, bool async);
  /// One after the other; `value` is the result of all of them.
  WorkPtr submit_each(std::vector<Prepared> calls, const Tensors& value, Milliseconds timeout,
                      bool async);
  /// What another engine has made of a call.
  WorkPtr elsewhere(WorkPtr work) { return coalescing_.noted(std::move(work)); }

  const std::shared_ptr<CudaGroup> group_;
  Engine& other_;
  const std::unique_ptr<PoolHosts> hosts_;
  std::unique_ptr<CudaWatch> watch_;
  std::set<std::pair<DType, ReduceOp>> kernels_;  // for reductions
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> left_{false};
  Coalescing coalescing_;
};

}  // namespace fastcomm
#endif
