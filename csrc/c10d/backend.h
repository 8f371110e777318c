// The c10d backend: every operation of a process group, over shared memory.
//
// One object a group and rank. Each operation is checked, made a Call (coll/call.h), and launched on the
// communicator; which algorithm serves it is chosen there (coll/select.h), by what all ranks agree on. A
// group whose ranks do not share memory is served by another backend of torch's as a whole (serve_by).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/continuations.h"
#include "c10d/lanes.h"
#include "c10d/prepared.h"
#include "c10d/work.h"
#include "engines/cpu/communicator.h"
#include "tensors/gradients.h"

namespace fastcomm {

constexpr const char* kBackendName = "fastcomm";

/// Thread-safe as c10d asks: operations of a group must be issued in the same order on every rank.
class FastcommBackend final : public ::c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

  /// Collective: returns once all ranks have found whether they share memory. `lane_store` is for lanes;
  /// `kept` lives as long as this. Raises TorchError.
  FastcommBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                  Milliseconds timeout, c10::intrusive_ptr<::c10d::Store> lane_store,
                  std::shared_ptr<void> kept);
  ~FastcommBackend() override;

  const GroupTraits& traits() const { return traits_; }
  /// What does everything where the ranks do not share memory: the others' calls would find nothing.
  void serve_by(BackendPtr engine) { whole_ = std::move(engine); }
  const BackendPtr& served_by() const { return whole_; }

  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override;
  /// A barrier that returns when all have come. Its timeout names who has not, on every rank.
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  // all_gather.cpp
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override;
  // reduce_scatter.cpp
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override;
  // all_to_all.cpp: sizes in pairs
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const ::c10d::ScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& opts) override;
  // coalesced.cpp: several tensors as one message
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override;
  /// What this thread issues in between is asynchronous, and done when the work that ends it is.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  // sparse.cpp
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  // point_to_point.cpp
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// A fused all_reduce, and what comes of it besides the gradients: tensors as in
  /// tensors/gradients.h, complete when the work is, or at once where there is none.
  struct Fused {
    WorkPtr work;
    Tensors results;
  };
  /// With shards a fused reduce_scatter: elements that other ranks own are left in an unspecified state.
  /// Nothing where there is no native path: ranks without shared memory, or slots that are too small.
  std::optional<Fused> fused_reduce(const Tensors& gradients, const GradientOptions& options,
                                    std::optional<Milliseconds> timeout, bool async);
  /// Gives every rank the shards of all others, where the tensors live. Of tensors without cuts nothing.
  /// Nothing as above.
  std::optional<Fused> gather_shards(const Tensors& tensors, const std::vector<ShardCuts>& shards,
                                     std::optional<Milliseconds> timeout, bool async);

  // Memory for what wants it where peers can reach it: DDP's buckets.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  /// `size` elements; ordinary memory, with a warning, where no shared memory is left.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // The life of the group.
  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  /// Counts operations; another backend that does everything counts its own.
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  /// Announces that this rank leaves; peers finish what this rank has taken part in. Idempotent, never blocks on
  /// peers.
  void shutdown() override;
  /// Gives the group up here and on every peer. Idempotent.
  void abort() override;
  /// Whether the group has failed, and how.
  ::c10d::ErrorType getError() override;
  bool supportsSplitting() const override { return traits_.native; }
  /// A group of some of the ranks, over a store that they alone use; collective among them. nullptr on
  /// the others.
  BackendPtr split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& opts) override;

 private:
  /// Runs or starts a native call. A Payload costs allocations: a synchronous call that succeeds
  /// does without, so it is made on demand.
  template <class WriteBack, class MakePayload>
  WorkPtr launch(const Call& call, Milliseconds timeout, bool async, at::TensorList shown,
                 const WriteBack& write_back, const MakePayload& make_payload);
  WorkPtr launch(Prepared made, Milliseconds timeout, bool async);
  /// One behind the other; `value` is the result of all of them.
  WorkPtr launch_each(std::vector<Prepared> calls, const std::vector<at::Tensor>& value,
                      Milliseconds timeout, bool async);
  /// The work, which endCoalescing() waits for.
  WorkPtr noted(WorkPtr work);
  Milliseconds timeout_or_default(Milliseconds timeout) const;
  /// nullptr where another backend does everything.
  std::shared_ptr<Communicator> group() const {
    return lanes_ == nullptr ? nullptr : lanes_->ordinary();
  }

  std::shared_ptr<void> kept_;
  c10::intrusive_ptr<Options> options_;
  GroupTraits traits_;
  std::shared_ptr<Continuations> continuations_;
  std::unique_ptr<Lanes> lanes_;  // nullptr where another backend does everything
  BackendPtr whole_;              // which is this; else nullptr
  std::atomic<uint64_t> calls_{0};
  /// Whether this thread is between startCoalescing() and endCoalescing().
  bool coalescing() const;

  std::atomic<int> coalescing_{0};  // threads that are
  mutable std::mutex coalesced_mutex_;
  std::map<std::thread::id, std::vector<WorkPtr>> coalesced_;  // issued by each since
};

}  // namespace fastcomm
