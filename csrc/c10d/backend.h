// The c10d backend: a process group, as torch.distributed sees it.
//
// One object a group and rank. It knows the group's life; operations belong to its engines, one for each type
// of device (engine.h).
#pragma once

#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/device_engines.h"
#include "c10d/native/native_engine.h"

namespace fastcomm {

constexpr const char* kBackendName = "fastcomm";

/// Thread-safe as c10d asks: operations of a group must be issued in the same order on every rank.
class FastcommBackend final : public ::c10d::Backend {
 public:
  using WorkPtr = Engine::WorkPtr;
  using BackendPtr = Engine::BackendPtr;
  using Fused = Engine::Fused;

  /// Collective: returns once all ranks have found out whether they share memory. `lane_store` is for lanes;
  /// `kept` lives as long as this. Raises TorchError.
  FastcommBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                  Milliseconds timeout, c10::intrusive_ptr<::c10d::Store> lane_store,
                  std::shared_ptr<void> kept, const std::string& label);
  ~FastcommBackend() override;

  const GroupTraits& traits() const { return traits_; }
  /// Where the ranks do not share memory: another backend, which does everything. Before the first call.
  void delegate_to(BackendPtr whole);
  /// That backend; nullptr where the ranks share memory.
  const BackendPtr& delegate() const { return delegate_; }
  /// The engine of collectives on a device; nullptr until that is decided.
  const Engine* engine_of(c10::Device device) const {
    const bool host = device.is_cpu() || device.is_meta();
    return host || devices_ == nullptr ? cpu_.get() : devices_->decided(device);
  }

  /// Why kernels of this library do not serve a device; "" if they do, or it is not decided yet.
  std::string why_not_direct(c10::Device device) const {
    return devices_ == nullptr ? "" : devices_->why_not_direct(device);
  }

  // Operations: done by the engine of their tensors' device.
  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override {
    return of(tensors).allreduce(tensors, opts);
  }
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override {
    return of(tensors).broadcast(tensors, opts);
  }
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override {
    return of(tensors).reduce(tensors, opts);
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override {
    return of(inputs).allgather(outputs, inputs, opts);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override {
    return of(input)._allgather_base(output, input, opts);
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override {
    return of(outputs).reduce_scatter(outputs, inputs, opts);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override {
    return of(output)._reduce_scatter_base(output, input, opts);
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const ::c10d::GatherOptions& opts) override {
    return of(inputs).gather(outputs, inputs, opts);
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const ::c10d::ScatterOptions& opts) override {
    return of(outputs).scatter(outputs, inputs, opts);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& opts) override {
    return of(input).alltoall_base(output, input, output_splits, input_splits, opts);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const ::c10d::AllToAllOptions& opts) override {
    return of(inputs).alltoall(outputs, inputs, opts);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override {
    return of(tensors).allreduce_coalesced(tensors, opts);
  }
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override {
    return of(inputs).allgather_coalesced(outputs, inputs, opts);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override {
    return of(inputs).allgather_into_tensor_coalesced(outputs, inputs, opts);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override {
    return of(outputs).reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override {
    return of(tensors).allreduce_sparse(tensors, opts);
  }
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return of_message(tensors).send(tensors, peer, tag);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return of_message(tensors).recv(tensors, peer, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return of_message(tensors).recvAnysource(tensors, tag);
  }
  // Calls without tensors are the CPU's.
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override { return cpu_->barrier(opts); }
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    cpu_->monitoredBarrier(opts, wait_all_ranks);
  }
  void startCoalescing() override { cpu_->startCoalescing(); }
  WorkPtr endCoalescing() override;
  /// Where there are devices, and backends for them: batches of their messages need it.
  bool supportsCoalescing() const override;
  /// By the engine of the first gradient's device, for lists that all lie there. Nothing where it has no way for
  /// them.
  std::optional<Fused> fused_reduce(const Tensors& gradients, const GradientOptions& options,
                                    std::optional<Milliseconds> timeout, bool async);
  std::optional<Fused> gather_shards(const Tensors& tensors,
                                     const std::vector<ShardOffsets>& shards,
                                     std::optional<Milliseconds> timeout, bool async);

  // Memory for users that want it where peers can reach it: DDP's buckets.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  /// A tensor on a device in memory that operations of this group use in place; undefined, with the reason,
  /// where there is none. Asks the other ranks for more of it (CudaGroup::empty).
  at::Tensor shared_empty_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType dtype,
                             std::string& why);
  /// `size` elements; ordinary memory, with a warning, where no shared memory is left.
  at::Tensor allocate_elements(long size, at::TensorOptions options);
  /// The same for DDP's reducer: of a complex dtype, twice as many real numbers.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // The life of the group.
  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  /// Counts operations.
  uint64_t getSequenceNumberForGroup() override;
  /// Announces that this rank leaves; peers finish what this rank has taken part in. Idempotent, never blocks on
  /// peers.
  void shutdown() override;
  /// Gives the group up here and on every peer. Idempotent.
  void abort() override;
  /// Whether the group has failed, and how.
  ::c10d::ErrorType getError() override;
  /// Raises that failure, if there is one, as a later call of `operation` would: for a caller that has seen the
  /// results of an operation on devices, and wants to know whether it failed.
  void raise_failure(const char* operation);
  bool supportsSplitting() const override { return traits_.native; }
  /// A group of some of the ranks, over a store that they alone use; collective among them. nullptr on
  /// the others.
  BackendPtr split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& opts) override;

 private:
  /// The engine of a call.
  Engine& of(const at::Tensor& tensor) { return tensor.is_cpu() ? *cpu_ : on_device(tensor); }
  Engine& of(const Tensors& tensors) { return tensors.empty() ? *cpu_ : of(tensors[0]); }
  Engine& of_message(const Tensors& tensors);
  Engine& on_device(const at::Tensor& tensor);
  std::vector<Engine*> device_engines();
  /// The failure of any engine.
  std::exception_ptr failure();

  std::shared_ptr<void> kept_;
  c10::intrusive_ptr<Options> options_;
  const std::string label_;
  GroupTraits traits_;
  Continuations::Ptr continuations_;
  c10::intrusive_ptr<Engine> cpu_;
  NativeEngine* native_ = nullptr;          // the CPU's engine, where it is a native one
  std::unique_ptr<DeviceEngines> devices_;  // nullptr where another backend does everything
  BackendPtr delegate_;                     // which is that engine's backend
};

}  // namespace fastcomm
