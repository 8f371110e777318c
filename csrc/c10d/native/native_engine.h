// The engine of ranks that share memory: tensors in host memory, and those on a device through it.
//
// Each operation is checked, made a Call (coll/call.h), and launched on the communicator; which algorithm
// serves it is chosen there (coll/select.h), by what all ranks agree on.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/calls/prepared.h"
#include "c10d/coalescing.h"
#include "c10d/engine.h"
#include "c10d/native/lanes.h"
#include "c10d/native/work.h"
#include "engines/cpu/communicator.h"
#include "tensors/gradients.h"

namespace fastcomm {

/// Progress: waiting callers drive; the progress thread of the process drives the rest (ADR 0010).
class NativeEngine final : public Engine {
 public:
  /// `group` is the group that was formed; `lane_store` is for further lanes.
  NativeEngine(std::shared_ptr<Communicator> group, c10::intrusive_ptr<Options> options,
               c10::intrusive_ptr<::c10d::Store> lane_store, Continuations::Ptr continuations);

  const GroupTraits& traits() const { return group()->traits(); }
  /// The communicator of what users issue.
  const std::shared_ptr<Communicator>& group() const { return lanes_.ordinary(); }

  std::string name() const override { return "shared memory"; }
  bool is_native() const override { return true; }
  Selection explain(const Query& query) const override {
    return explain_selection(traits(), query);
  }
  std::exception_ptr failure() const override { return group()->failure(); }
  void fail(const std::exception_ptr& why) override;
  void leave(const std::string& how) override { lanes_.leave(how); }
  /// Gives the group up here and on every peer. Idempotent.
  void abort() override;
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  bool coalescing() const override { return coalescing_.open(); }

  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override;
  /// A barrier that returns when all ranks have come. Its timeout names those that have not, on every rank.
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
  /// What this thread issues in between is asynchronous, and done when the work is that ends the block.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  // sparse.cpp
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  // point_to_point.cpp
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// For gradients on the CPU. Nothing where slots are too small.
  std::optional<Fused> fused_reduce(const Tensors& gradients, const GradientOptions& options,
                                    std::optional<Milliseconds> timeout, bool async) override;
  std::optional<Fused> gather_shards(const Tensors& tensors,
                                     const std::vector<ShardOffsets>& shards,
                                     std::optional<Milliseconds> timeout, bool async) override;

  /// What every rank has to say, `bytes` of each, one after another in the order of ranks; a call of the group
  /// like others, and compared by `signature`, which messages call `what_for`. Raises what it ended with.
  void gather_bytes(const void* own, void* all, size_t bytes, uint64_t signature,
                    std::string what_for);

 private:
  Site site() const { return {getRank(), getSize()}; }
  /// Runs or starts a native call. A Payload costs allocations: a synchronous call that succeeds
  /// does without one, so it is made on demand.
  template <class WriteBack, class MakePayload>
  WorkPtr launch(const Call& call, Milliseconds timeout, bool async, at::TensorList shown,
                 const WriteBack& write_back, const MakePayload& make_payload);
  WorkPtr launch(Prepared made, Milliseconds timeout, bool async);
  /// One after the other; `value` is the result of all of them.
  WorkPtr launch_each(std::vector<Prepared> calls, const std::vector<at::Tensor>& value,
                      Milliseconds timeout, bool async);
  Lanes lanes_;
  std::atomic<uint64_t> calls_{0};
  Coalescing coalescing_;
};

}  // namespace fastcomm
