// The c10d backend: every operation of a process group, sent to shared memory or to a stock engine.
//
// One object a group and rank. The router (coll/select.h) decides by what all ranks agree on, so
// all of them take the same path; what it does not do natively goes to the Gloo group that was made
// along with this one. A group whose ranks do not share memory is Gloo's as a whole.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/continuations.h"
#include "c10d/lane.h"
#include "c10d/stock_work.h"
#include "c10d/work.h"
#include "coll/communicator.h"
#include "tensors/gradients.h"

namespace fastcomm {

constexpr const char* kBackendName = "fastcomm";

/// Thread-safe as c10d asks: operations of a group must be issued in the same order on every rank.
class FastcommBackend final : public ::c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  /// A call that a stock engine takes as it is.
  using StockCall = std::function<WorkPtr(::c10d::Backend& engine)>;

  /// Collective: returns once all ranks have found whether they share memory. `stock` is a group of
  /// the same ranks; `lane_store` and `make_stock` are for lanes. Raises TorchError.
  FastcommBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                  Milliseconds timeout, StockPtr stock,
                  c10::intrusive_ptr<::c10d::Store> lane_store, Lanes::MakeNamedStock make_stock);
  ~FastcommBackend() override;

  const GroupTraits& traits() const { return traits_; }
  StockPtr stock() { return lanes_->ordinary().stock(options_->timeout); }

  // Native where the router says so.
  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override;
  // (parts.cpp)
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override;

  // (point_to_point.cpp)
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

  // Stock (stock_operations.cpp).
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const ::c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& opts) override;
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Memory for what wants it where peers can reach it: DDP's buckets.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  /// `size` elements; ordinary memory, with a warning, where no shared memory is left.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // The life of the group.
  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
    lanes_->set_timeout(timeout);
  }
  void setSequenceNumberForGroup() override {}
  /// Counts native operations: Gloo counts its own.
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  /// Says goodbye; peers finish what this rank has taken part in. Idempotent, never blocks on
  /// peers.
  void shutdown() override;
  /// Gives the group up here and on every peer. Idempotent.
  void abort() override;

 private:
  /// Runs or starts a native call. A Payload costs allocations: a synchronous call that succeeds
  /// does without, so it is made on demand.
  template <class WriteBack, class MakePayload>
  WorkPtr launch(const Call& call, Milliseconds timeout, bool async, const char* title,
                 const WriteBack& write_back, const MakePayload& make_payload);
  /// Hands an operation to the stock group, behind a meeting of the ranks where they share memory.
  /// `outputs` as in StockWork::start.
  WorkPtr through_stock(const Call& call, const Tensors& outputs, Milliseconds timeout, bool async,
                        ::c10d::OpType type, StockCall start);
  /// A reduce_scatter of one input of all parts, or one a rank; `stock` is Gloo's.
  WorkPtr sum_parts(OpKind kind, const at::Tensor& output, const Tensors& inputs,
                    const ::c10d::ReduceScatterOptions& opts, StockCall stock);
  Milliseconds timeout_or_default(Milliseconds timeout) const;
  bool is_native(const Query& query) const;
  bool is_native(const Call& call) const {
    return is_native(Query{call.kind, call.dtype, call.op, call.bytes()});
  }

  /// nullptr where the group is Gloo's.
  const std::shared_ptr<Communicator>& group() const { return lanes_->ordinary().group(); }

  c10::intrusive_ptr<Options> options_;
  GroupTraits traits_;
  std::shared_ptr<Continuations> continuations_;
  std::unique_ptr<Lanes> lanes_;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace fastcomm
