// The engine that runs on another of torch's backends.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "c10d/coalescing.h"
#include "c10d/delegate/delegate.h"
#include "c10d/delegate/delegate_work.h"
#include "c10d/delegate/device_watch.h"
#include "c10d/engine.h"

namespace fastcomm {

/// Progress: by that backend's own threads. Calls are not compared between ranks, and sums have the bits
/// that it gives them. Its errors become ours: any that is not about a call's arguments gives the group up.
class DelegateEngine final : public Engine {
 public:
  DelegateEngine(BackendPtr inner, DelegateKind kind, c10::intrusive_ptr<Options> options,
                 Continuations::Ptr continuations, std::string label,
                 std::shared_ptr<Communicator> beside = nullptr);
  ~DelegateEngine() override;

  std::string name() const override { return delegate_->kind().name; }
  Selection explain(const Query& query) const override;
  std::exception_ptr failure() const override { return delegate_->failure(); }
  void fail(const std::exception_ptr& why) override;
  void leave(const std::string& how) override;
  void abort() override;
  void abandon() override;
  bool coalescing() const override { return coalescing_.open(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner_->setTimeout(countable(timeout));
  }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;
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
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  template <class Start>
  WorkPtr submit(const char* name, ::c10d::OpType type, const Tensors& outputs,
                 Milliseconds timeout, const Start& start);
  /// A send or a receive: what is wrong with the group is raised at once.
  template <class Start>
  WorkPtr exchange(const char* name, int peer, const Tensors& tensors, const Start& start);
  /// The backend's work, watched until it ends; nullptr where it makes none.
  template <class Start>
  WorkPtr started(DelegateWork::Call call, Milliseconds timeout, const Start& start);
  DelegateWork::Call call(const char* name, int peer, ::c10d::OpType type,
                          const Tensors& outputs) const;

  const std::shared_ptr<Delegate> delegate_;
  BackendPtr inner_;
  const bool coalesces_;                // itself what is issued in a block
  std::unique_ptr<DeviceWatch> watch_;  // of a backend for a device
  std::atomic<uint64_t> sequence_{0};
  Coalescing coalescing_;
};

}  // namespace fastcomm
