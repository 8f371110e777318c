// c10d's operations, as requests.
#include <memory>
#include <type_traits>

#include "c10d/edge/backend.h"
#include "c10d/edge/call_events.h"
#include "c10d/edge/recorded_request.h"
#include "c10d/life/exception.h"
#include "c10d/works/work_of_many.h"
#include "tensors/gradients.h"

namespace fastcomm {
namespace {

using ::c10d::OpType;
using Other = ::c10d::Backend;

template <class Options, class = void>
constexpr bool reduces = false;
template <class Options>
constexpr bool reduces<Options, std::void_t<decltype(Options::reduceOp)>> = true;
template <class Options, class = void>
constexpr bool has_root = false;
template <class Options>
constexpr bool has_root<Options, std::void_t<decltype(Options::rootRank)>> = true;

/// A call without its tensors.
template <class Options>
Request request_of(OpKind kind, OpType type, const Options& opts) {
  Request request;
  request.kind = kind;
  request.type = type;
  request.timeout = opts.timeout;
  request.async = opts.asyncOp;
  if constexpr (reduces<Options>) request.op = &opts.reduceOp;
  if constexpr (has_root<Options>) request.root = opts.rootRank;
  return request;
}

/// A tensor, a list, or a list of lists.
template <class Given>
void set(at::TensorList& tensors, c10::ArrayRef<Tensors>& lists, Given& given) {
  if constexpr (std::is_same<Given, TensorLists>::value) {
    lists = given;
  } else {
    tensors = given;
  }
}

/// Ends what is written down of a call with its work; nullptr: the call is done.
void end_with(const CallEnd& end, const WorkPtr& work) {
  if (work == nullptr) {
    end.end(nullptr);
  } else if (auto* const own = dynamic_cast<GroupWork*>(work.get())) {
    own->end_with(end);
  } else if (work->isCompleted()) {  // of an engine from outside
    end.end(work->exception());
  } else {
    end.entry.end(false);
    end.let_go();
  }
}

/// Runs `body`; a call of which that raises has ended so. The record by value: an engine may take
/// away the request's.
template <class Body>
auto ending_if_it_raises(const CallRecord record, const Body& body) {
  try {
    return body();
  } catch (...) {
    record.end(records::outcome_of(code_of(std::current_exception())));
    throw;
  }
}

/// Asks for a work, which is watched: NCCL makes none for a caller who does not ask for one.
template <class Options>
Options with_work(Options opts) {
  opts.asyncOp = true;
  return opts;
}

}  // namespace

std::optional<WorkPtr> FastcommBackend::submit_if_taken(Request& request) {
  const bool in_block = coalescing_.open();
  if (in_block) request.async = request.coalesced = true;
  Engine* const engine = engines_->choose(request);
  if (engine == nullptr) return std::nullopt;
  const CallEvents events(*this, *engine, request);
  const auto submit = [&] {
    return in_block ? coalescing_.submit(*engine, request) : engine->submit(request);
  };
  request.end.record = records_.begin(request, *engine, continuations_);
  if (record_ != nullptr && record_->has_entries() &&
      !engine->tells_itself()) {  // what is refused stays, not ended
    request.end.entry =
        record_->begin(recorded(request, rank_, options_->timeout), getGroupUid(), getGroupDesc());
  }
  return ending_if_it_raises(request.end.record, [&] {
    WorkPtr work = submit();
    end_with(request.end, work);
    return work;
  });
}

WorkPtr FastcommBackend::submit(Request& request, Request::Forward forward) {
  request.forward = forward;
  return translating([&] {
    auto work = submit_if_taken(request);
    if (work) return std::move(*work);
    throw Error(ErrorCode::kUnsupported,
                concat(request.name(), ": no engine of the group takes it"));
  });
}

bool FastcommBackend::run(const ShortCall& call, at::ScalarType type, Milliseconds timeout) {
  NativeEngine* const engine = engines_->sole_native();
  if (engine == nullptr || Continuations::is_inside() || coalescing_.open() ||
      CallEvents::are_wanted() || (record_ != nullptr && record_->has_entries()))
    return false;
  const CallRecord record = records_.begin(call, type, *engine);
  translating([&] { ending_if_it_raises(record, [&] { engine->run(call, record, timeout); }); });
  record.end(records::kWell);
  return true;
}

template <class Method, class Opts, class Outputs, class... Inputs>
WorkPtr FastcommBackend::collective(OpKind kind, OpType type, Method method, const Opts& opts,
                                    Outputs& outputs, Inputs&... inputs) {
  Request request = request_of(kind, type, opts);
  set(request.outputs, request.output_lists, outputs);
  (set(request.inputs, request.input_lists, inputs), ...);
  return submit(request,
                [&](Other& other) { return (other.*method)(outputs, inputs..., with_work(opts)); });
}

WorkPtr FastcommBackend::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  return collective(OpKind::kAllReduce, OpType::ALLREDUCE, &Other::allreduce, opts, tensors);
}

WorkPtr FastcommBackend::all_reduce_add_rms_norm(Tensors& tensors,
                                                 const std::shared_ptr<AddRmsNorm>& tail) {
  ::c10d::AllreduceOptions opts;
  opts.asyncOp = false;
  Request request = request_of(OpKind::kAllReduceAddRmsNorm, OpType::ALLREDUCE, opts);
  request.outputs = tensors;
  request.tail = &tail;
  TORCH_CHECK(!coalescing_.open(), request.name(),
              ": not between startCoalescing and endCoalescing, since it waits for its sum");
  return submit(request, [&](Other& other) { return other.allreduce(tensors, with_work(opts)); });
}

WorkPtr FastcommBackend::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  return collective(OpKind::kAllReduceSparse, OpType::_ALLREDUCE_SPARSE, &Other::allreduce_sparse,
                    opts, tensors);
}

WorkPtr FastcommBackend::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) {
  return collective(OpKind::kBroadcast, OpType::BROADCAST, &Other::broadcast, opts, tensors);
}

WorkPtr FastcommBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  return collective(OpKind::kReduce, OpType::REDUCE, &Other::reduce, opts, tensors);
}

WorkPtr FastcommBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                   const ::c10d::AllgatherOptions& opts) {
  return collective(OpKind::kAllGather, OpType::ALLGATHER, &Other::allgather, opts, outputs,
                    inputs);
}

WorkPtr FastcommBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const ::c10d::AllgatherOptions& opts) {
  return collective(OpKind::kAllGatherIntoTensor, OpType::_ALLGATHER_BASE, &Other::_allgather_base,
                    opts, output, input);
}

WorkPtr FastcommBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                        const ::c10d::ReduceScatterOptions& opts) {
  return collective(OpKind::kReduceScatter, OpType::REDUCE_SCATTER, &Other::reduce_scatter, opts,
                    outputs, inputs);
}

WorkPtr FastcommBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const ::c10d::ReduceScatterOptions& opts) {
  return collective(OpKind::kReduceScatterTensor, OpType::_REDUCE_SCATTER_BASE,
                    &Other::_reduce_scatter_base, opts, output, input);
}

WorkPtr FastcommBackend::gather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::GatherOptions& opts) {
  return collective(OpKind::kGather, OpType::GATHER, &Other::gather, opts, outputs, inputs);
}

WorkPtr FastcommBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                 const ::c10d::ScatterOptions& opts) {
  return collective(OpKind::kScatter, OpType::SCATTER, &Other::scatter, opts, outputs, inputs);
}

WorkPtr FastcommBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const ::c10d::AllToAllOptions& opts) {
  Request request = request_of(OpKind::kAllToAllSingle, OpType::ALLTOALL_BASE, opts);
  request.inputs = input;
  request.outputs = output;
  request.input_splits = input_splits;
  request.output_splits = output_splits;
  return submit(request, [&](Other& other) {
    return other.alltoall_base(output, input, output_splits, input_splits, with_work(opts));
  });
}

WorkPtr FastcommBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                  const ::c10d::AllToAllOptions& opts) {
  return collective(OpKind::kAllToAll, OpType::ALLTOALL, &Other::alltoall, opts, outputs, inputs);
}

WorkPtr FastcommBackend::allreduce_coalesced(Tensors& tensors,
                                             const ::c10d::AllreduceCoalescedOptions& opts) {
  return collective(OpKind::kAllReduceCoalesced, OpType::ALLREDUCE_COALESCED,
                    &Other::allreduce_coalesced, opts, tensors);
}

WorkPtr FastcommBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                             const ::c10d::AllgatherOptions& opts) {
  return collective(OpKind::kAllGatherCoalesced, OpType::ALLGATHER_COALESCED,
                    &Other::allgather_coalesced, opts, outputs, inputs);
}

WorkPtr FastcommBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::AllgatherOptions& opts) {
  return collective(OpKind::kAllGatherIntoTensorCoalesced, OpType::ALLGATHER_COALESCED,
                    &Other::allgather_into_tensor_coalesced, opts, outputs, inputs);
}

WorkPtr FastcommBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::ReduceScatterOptions& opts) {
  return collective(OpKind::kReduceScatterTensorCoalesced, OpType::REDUCE_SCATTER,
                    &Other::reduce_scatter_tensor_coalesced, opts, outputs, inputs);
}

void FastcommBackend::check_peer(const char* operation, int peer) const {
  translating([&] {
    FC_CHECK(peer >= 0 && peer < size_, operation, ": rank ", peer, " is not in a group of ",
             size_);
    FC_CHECK(peer != rank_, operation, ": the peer is this rank itself, ", peer);
  });
}

WorkPtr FastcommBackend::submit_message(OpKind kind, Tensors& tensors, int peer, int tag,
                                        Request::Forward forward) {
  const bool is_send = kind == OpKind::kSend;
  Request request;
  request.kind = kind;
  request.type = is_send ? OpType::SEND : OpType::RECV;
  request.async = true;
  (is_send ? request.inputs : request.outputs) = tensors;
  request.peer = peer;
  request.tag = tag;
  return submit(request, forward);
}

WorkPtr FastcommBackend::send(Tensors& tensors, int peer, int tag) {
  check_peer("send", peer);
  return submit_message(OpKind::kSend, tensors, peer, tag,
                        [&](Other& other) { return other.send(tensors, peer, tag); });
}

WorkPtr FastcommBackend::recv(Tensors& tensors, int peer, int tag) {
  check_peer("recv", peer);
  return submit_message(OpKind::kRecv, tensors, peer, tag,
                        [&](Other& other) { return other.recv(tensors, peer, tag); });
}

WorkPtr FastcommBackend::recvAnysource(Tensors& tensors, int tag) {
  return submit_message(OpKind::kRecv, tensors, Request::kNoRank, tag,
                        [&](Other& other) { return other.recvAnysource(tensors, tag); });
}

WorkPtr FastcommBackend::barrier(const ::c10d::BarrierOptions& opts) {
  Request request = request_of(OpKind::kBarrier, OpType::BARRIER, opts);
  return submit(request, [&](Other& other) { return other.barrier(with_work(opts)); });
}

void FastcommBackend::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const bool unset = opts.timeout == ::c10d::kUnsetTimeout;
  Request request;  // for the record
  request.kind = OpKind::kBarrier;
  translating([&] {
    Engine& engine = engines_->host_here(unset ? options_->timeout : opts.timeout);
    request.end.record = records_.begin(request, engine, continuations_);
    const CallRecord& record = request.end.record;
    ending_if_it_raises(record, [&] { engine.monitored_barrier(opts, wait_all_ranks); });
    record.end(records::kWell);
  });
}

WorkPtr FastcommBackend::endCoalescing() {
  return translating(
      [&] { return c10::make_intrusive<WorkOfMany>(rank_, coalescing_.end(), continuations_); });
}

std::optional<FastcommBackend::Fused> FastcommBackend::submit_list(
    OpKind kind, OpType type, const Tensors& tensors, const GradientOptions& options,
    std::optional<Milliseconds> timeout, bool async) {
  Fused fused;
  Request request;
  request.kind = kind;
  request.type = type;
  request.timeout = timeout.value_or(::c10d::kUnsetTimeout);
  request.async = async;
  request.outputs = tensors;
  request.gradients = &options;
  request.results = &fused.results;
  return translating([&]() -> std::optional<Fused> {
    auto work = submit_if_taken(request);
    if (!work) return std::nullopt;
    fused.work = std::move(*work);
    return std::move(fused);
  });
}

std::optional<FastcommBackend::Fused> FastcommBackend::fused_reduce(
    const Tensors& gradients, const GradientOptions& options, std::optional<Milliseconds> timeout,
    bool async) {
  const bool scatters = !options.shards.empty();
  return submit_list(scatters ? OpKind::kFusedReduceScatter : OpKind::kFusedAllReduce,
                     OpType::ALLREDUCE, gradients, options, timeout, async);
}

std::optional<FastcommBackend::Fused> FastcommBackend::gather_shards(
    const Tensors& tensors, const std::vector<ShardOffsets>& shards,
    std::optional<Milliseconds> timeout, bool async) {
  const GradientOptions options{{false, 1, NormKind::kNone}, {}, shards, {}};
  return submit_list(OpKind::kGatherShards, OpType::ALLGATHER, tensors, options, timeout, async);
}

}  // namespace fastcomm
