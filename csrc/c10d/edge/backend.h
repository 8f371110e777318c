// The c10d backend: a process group, as torch.distributed sees it.
//
// One object per group and rank. It makes a Request of each call, which goes to one of the group's
// engines (choose/choose.h), and manages the group's life.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/choose/choose.h"
#include "c10d/edge/call_records.h"
#include "c10d/edge/coalescing.h"
#include "c10d/life/flight_recorder.h"

namespace fastcomm {

constexpr const char* kBackendName = "fastcomm";

/// Thread-safe as c10d asks: operations of a group must be issued in the same order on every rank.
class FastcommBackend final : public ::c10d::Backend {
 public:
  using BackendPtr = DelegateEngine::BackendPtr;

  /// Collective: returns once all ranks have found out whether they share memory. `lane_store` is
  /// for engines and communicators; `kept` is a reference that is dropped with this object;
  /// `members` are the ranks' numbers in the job. Raises TorchError.
  FastcommBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                  Milliseconds timeout, c10::intrusive_ptr<::c10d::Store> lane_store,
                  std::shared_ptr<void> kept, const std::string& label,
                  std::vector<uint64_t> members);
  ~FastcommBackend() override;

  /// Counts what makes another group of a name: groups that are formed, left or given up. The count
  /// rises before the change, so a thread that uses a group formed since sees it raised, by its own
  /// order or by what ordered the two threads.
  static uint64_t changes() { return changes_.load(std::memory_order_acquire); }

  const GroupTraits& traits() const { return traits_; }
  /// The reason why no operation is composed of what hosts do; "" if some are.
  const std::string& why_not_composed() const { return why_not_composed_; }
  /// The ranks of each host, if operations are composed of what hosts do; else none.
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  /// Of these.
  const HostThresholds& host_thresholds() const { return host_thresholds_; }
  /// Sets another backend, which does everything, if the ranks do not share memory. Collective;
  /// before the first call. `hosts` says which ranks lie where, or is ""; `address` as in
  /// GlooMaker. Waits for all ranks; raises TorchError if one does not come, or the store fails.
  void delegate_to(BackendPtr whole, const std::string& hosts, std::string address);
  /// That backend; nullptr if the ranks share memory.
  const BackendPtr& delegate() const { return delegate_; }
  const Engines& engines() const { return *engines_; }

  // Operations: operations.cpp.
  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
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
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  /// This thread's calls in between are asynchronous, and done when the work is that ends the
  /// block.
  void startCoalescing() override { coalescing_.begin(); }
  WorkPtr endCoalescing() override;
  /// True if there are devices, and backends for them: batches of their messages need it.
  bool supportsCoalescing() const override {
    return engines_ != nullptr && engines_->may_coalesce();
  }

  /// A fused all_reduce, and its results besides the gradients: tensors as in tensors/gradients.h,
  /// complete when the work is, or at once if there is none.
  struct Fused {
    WorkPtr work;
    Tensors results;
  };
  /// With shards a fused reduce_scatter: elements that other ranks own are left in an unspecified
  /// state. Nothing if no engine takes such a list.
  std::optional<Fused> fused_reduce(const Tensors& gradients, const GradientOptions& options,
                                    std::optional<Milliseconds> timeout, bool async);
  /// Gives every rank the shards of all others, in place. Tensors without offsets are left out.
  /// Nothing, as above.
  std::optional<Fused> gather_shards(const Tensors& tensors,
                                     const std::vector<ShardOffsets>& shards,
                                     std::optional<Milliseconds> timeout, bool async);

  /// A call that comes without torch's own layers. As one of c10d: nullptr means that it is done.
  /// Raises TorchError.
  WorkPtr submit(Request& request, Request::Forward forward);
  /// Runs a short call on elements of `type`, in host memory, as that would; false, before anything
  /// has happened, if somebody asks for more than this tells: a profiler, torch's flight recorder,
  /// a block of calls, continuations, another engine. Raises TorchError.
  bool run(const ShortCall& call, at::ScalarType type, Milliseconds timeout);
  /// A synchronous sum of one tensor, with a tail. Once it is over, the caller runs a tail that is
  /// not done.
  WorkPtr all_reduce_add_rms_norm(Tensors& tensors, const std::shared_ptr<AddRmsNorm>& tail);

  // Memory within reach of peers for users that want it: DDP's buckets.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  /// A tensor on a device in memory that operations of this group use in place; undefined, with the
  /// reason, if there is none. Asks the other ranks for more of it (CudaGroup::empty).
  at::Tensor shared_empty_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType dtype,
                             std::string& why);
  /// `size` elements; ordinary memory, with a warning, if no shared memory is left.
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
  /// Announces that this rank leaves; peers finish the operations that it has taken part in.
  /// Idempotent, never blocks on peers.
  void shutdown() override;
  /// Gives the group up here and on every peer. Idempotent.
  void abort() override;
  /// Tells if the group has failed, and how.
  ::c10d::ErrorType getError() override;
  /// Raises that failure, if there is one, as a later call of `operation` would: for a caller that
  /// has seen the results of an operation on devices, and wants to know if it failed.
  void raise_failure(const char* operation);
  bool supportsSplitting() const override { return traits_.native; }
  /// A group of some of the ranks, over a store that they alone use; collective among them. nullptr
  /// on the others.
  BackendPtr split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& opts) override;

 private:
  /// Gives a call to the engine that takes it; nothing if none does.
  std::optional<WorkPtr> submit_if_taken(Request& request);
  /// A collective with its tensors; `method` is that of other backends for it.
  template <class Method, class Opts, class Outputs, class... Inputs>
  WorkPtr collective(OpKind kind, ::c10d::OpType type, Method method, const Opts& opts,
                     Outputs& outputs, Inputs&... inputs);
  /// Raises TorchError unless `peer` is another rank of the group.
  void check_peer(const char* operation, int peer) const;
  WorkPtr submit_message(OpKind kind, Tensors& tensors, int peer, int tag,
                         Request::Forward forward);
  std::optional<Fused> submit_list(OpKind kind, ::c10d::OpType type, const Tensors& tensors,
                                   const GradientOptions& options,
                                   std::optional<Milliseconds> timeout, bool async);
  GroupContext context() const { return {rank_, size_, options_, continuations_}; }
  /// The failure of any engine.
  std::exception_ptr failure() const;
  /// From here on the flight recorder has the group, if it is on. Engines are there.
  void begin_record();

  static std::atomic<uint64_t> changes_;

  std::shared_ptr<void> kept_;
  c10::intrusive_ptr<Options> options_;
  const std::string label_;
  GroupTraits traits_;
  std::string why_not_composed_;
  std::vector<std::vector<int>> hosts_;
  HostThresholds host_thresholds_;
  Continuations::Ptr continuations_;
  HostRanks host_;  // until there are engines, as what follows
  c10::intrusive_ptr<::c10d::Store> lane_store_;
  BackendPtr delegate_;
  std::unique_ptr<Engines> engines_;  // nullptr until the ranks have chosen
  Coalescing coalescing_;
  uint64_t token_ = 0;                     // the same on all ranks, and of no other group
  std::unique_ptr<RecordedGroup> record_;  // nullptr: nothing asks for dumps
  RecordsOfGroup records_;
};

}  // namespace fastcomm
