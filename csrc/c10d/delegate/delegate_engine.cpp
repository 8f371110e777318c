#include "c10d/delegate/delegate_engine.h"

#include "c10d/exception.h"
#include "c10d/work_of_many.h"
#include "core/call_site.h"
#include "transport/fork.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = Engine::WorkPtr;

namespace {

Tensors first(const TensorLists& lists) { return lists.empty() ? Tensors{} : lists[0]; }

/// So that there is a work, which is watched: NCCL has none for a caller who does not ask for one.
template <class Options>
Options with_work(Options opts) {
  opts.asyncOp = true;
  return opts;
}

}  // namespace

DelegateEngine::DelegateEngine(BackendPtr inner, DelegateKind kind,
                               c10::intrusive_ptr<Options> options,
                               Continuations::Ptr continuations, std::string label,
                               std::shared_ptr<Communicator> beside)
    : Engine(inner->getRank(), inner->getSize(), std::move(options), std::move(continuations)),
      delegate_(
          std::make_shared<Delegate>(*inner, std::move(kind), std::move(beside), std::move(label))),
      inner_(std::move(inner)),
      coalesces_(inner_->supportsCoalescing()) {
  static const bool watched = [] { return watch_for_forks(), true; }();
  static_cast<void>(watched);
  if (delegate_->beside() != nullptr) watch_ = std::make_unique<DeviceWatch>(delegate_);
}

DelegateEngine::~DelegateEngine() {
  watch_.reset();
  delegate_->forget();
}

void DelegateEngine::abandon() {
  static_cast<void>(watch_.release());
  static_cast<void>(inner_.release());
}

Selection DelegateEngine::explain(const Query& query) const {
  if (row_of(query.kind).algorithms.empty()) {
    return {Algorithm::kDelegated, "there is no such operation"};
  }
  return {Algorithm::kDelegated, concat("a backend of torch's serves the group: ", name())};
}

template <class Start>
WorkPtr DelegateEngine::submit(const char* name, OpType type, const Tensors& outputs,
                               Milliseconds timeout, const Start& start) {
  return translating([&] {
    DelegateWork::Call call = this->call(name, -1, type, outputs);
    if (const auto failure = delegate_->failed_before(name)) {
      return coalescing_.noted(DelegateWork::failed(std::move(call), failure));
    }
    ++sequence_;
    return coalescing_.noted(started(std::move(call), timeout_or_default(timeout), start));
  });
}

template <class Start>
WorkPtr DelegateEngine::exchange(const char* name, int peer, const Tensors& tensors,
                                 const Start& start) {
  return translating([&] {
    const OpType type = name[0] == 's' ? OpType::SEND : OpType::RECV;
    DelegateWork::Call call = this->call(name, peer, type, tensors);
    if (const auto failure = delegate_->failed_before(name)) std::rethrow_exception(failure);
    return coalescing_.noted(started(std::move(call), options_->timeout, start));
  });
}

DelegateWork::Call DelegateEngine::call(const char* name, int peer, OpType type,
                                        const Tensors& outputs) const {
  const Delegate::Subject subject{name, peer, sequence_, call_site()};
  check_process([&] { return delegate_->front(subject); });
  return {delegate_, subject, type, outputs, options_->timeout, continuations_};
}

template <class Start>
WorkPtr DelegateEngine::started(DelegateWork::Call call, Milliseconds timeout, const Start& start) {
  // In a block that the backend coalesces itself, the work that ends it is watched.
  const bool watched = watch_ != nullptr && !(coalesces_ && coalescing());
  const auto entry = watched ? watch_->begin(call.subject, timeout) : nullptr;
  try {
    WorkPtr inner = start();
    if (inner == nullptr) {  // a message in a block: the end of the block has the work
      if (watched) watch_->drop(entry);
      return nullptr;
    }
    auto work = DelegateWork::start(call, std::move(inner));
    if (watched) watch_->follow(entry, work);
    return work;
  } catch (...) {
    if (watched) watch_->drop(entry);
    std::rethrow_exception(delegate_->failed(call.subject, std::current_exception()));
  }
}

WorkPtr DelegateEngine::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  return submit("all_reduce", OpType::ALLREDUCE, tensors, opts.timeout,
                [&] { return inner_->allreduce(tensors, with_work(opts)); });
}

WorkPtr DelegateEngine::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) {
  return submit("broadcast", OpType::BROADCAST, tensors, opts.timeout,
                [&] { return inner_->broadcast(tensors, with_work(opts)); });
}

WorkPtr DelegateEngine::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  return submit("reduce", OpType::REDUCE, tensors, opts.timeout,
                [&] { return inner_->reduce(tensors, with_work(opts)); });
}

WorkPtr DelegateEngine::barrier(const ::c10d::BarrierOptions& opts) {
  return submit("barrier", OpType::BARRIER, {}, opts.timeout,
                [&] { return inner_->barrier(with_work(opts)); });
}

WorkPtr DelegateEngine::allgather(TensorLists& outputs, Tensors& inputs,
                                  const ::c10d::AllgatherOptions& opts) {
  return submit("all_gather", OpType::ALLGATHER, first(outputs), opts.timeout,
                [&] { return inner_->allgather(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const ::c10d::AllgatherOptions& opts) {
  return submit("all_gather_into_tensor", OpType::_ALLGATHER_BASE, {output}, opts.timeout,
                [&] { return inner_->_allgather_base(output, input, with_work(opts)); });
}

WorkPtr DelegateEngine::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                       const ::c10d::ReduceScatterOptions& opts) {
  return submit("reduce_scatter", OpType::REDUCE_SCATTER, outputs, opts.timeout,
                [&] { return inner_->reduce_scatter(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const ::c10d::ReduceScatterOptions& opts) {
  return submit("reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, {output}, opts.timeout,
                [&] { return inner_->_reduce_scatter_base(output, input, with_work(opts)); });
}

WorkPtr DelegateEngine::gather(TensorLists& outputs, Tensors& inputs,
                               const ::c10d::GatherOptions& opts) {
  return submit("gather", OpType::GATHER, first(outputs), opts.timeout,
                [&] { return inner_->gather(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::scatter(Tensors& outputs, TensorLists& inputs,
                                const ::c10d::ScatterOptions& opts) {
  return submit("scatter", OpType::SCATTER, outputs, opts.timeout,
                [&] { return inner_->scatter(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::alltoall_base(at::Tensor& output, at::Tensor& input,
                                      std::vector<int64_t>& output_splits,
                                      std::vector<int64_t>& input_splits,
                                      const ::c10d::AllToAllOptions& opts) {
  return submit("all_to_all_single", OpType::ALLTOALL_BASE, {output}, opts.timeout, [&] {
    return inner_->alltoall_base(output, input, output_splits, input_splits, with_work(opts));
  });
}

WorkPtr DelegateEngine::alltoall(Tensors& outputs, Tensors& inputs,
                                 const ::c10d::AllToAllOptions& opts) {
  return submit("all_to_all", OpType::ALLTOALL, outputs, opts.timeout,
                [&] { return inner_->alltoall(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::allreduce_coalesced(Tensors& tensors,
                                            const ::c10d::AllreduceCoalescedOptions& opts) {
  return submit("all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, tensors, opts.timeout,
                [&] { return inner_->allreduce_coalesced(tensors, with_work(opts)); });
}

WorkPtr DelegateEngine::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                            const ::c10d::AllgatherOptions& opts) {
  return submit("all_gather_coalesced", OpType::ALLGATHER_COALESCED, first(outputs), opts.timeout,
                [&] { return inner_->allgather_coalesced(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const ::c10d::AllgatherOptions& opts) {
  return submit(
      "all_gather_into_tensor_coalesced", OpType::ALLGATHER_COALESCED, outputs, opts.timeout,
      [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const ::c10d::ReduceScatterOptions& opts) {
  return submit(
      "reduce_scatter_tensor_coalesced", OpType::REDUCE_SCATTER, outputs, opts.timeout,
      [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, with_work(opts)); });
}

WorkPtr DelegateEngine::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  return submit("all_reduce", OpType::_ALLREDUCE_SPARSE, tensors, opts.timeout,
                [&] { return inner_->allreduce_sparse(tensors, with_work(opts)); });
}

void DelegateEngine::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  translating([&] {
    constexpr const char* kName = "monitored_barrier";
    DelegateWork::Call call = this->call(kName, -1, OpType::BARRIER, {});
    if (const auto failure = delegate_->failed_before(kName)) std::rethrow_exception(failure);
    ++sequence_;
    DelegateWork::aside(std::move(call), [inner = inner_, opts, wait_all_ranks] {
      inner->monitoredBarrier(opts, wait_all_ranks);
    })->wait();
  });
}

WorkPtr DelegateEngine::send(Tensors& tensors, int peer, int tag) {
  translating([&] { check_peer("send", peer); });
  return exchange("send", peer, tensors, [&] { return inner_->send(tensors, peer, tag); });
}

WorkPtr DelegateEngine::recv(Tensors& tensors, int peer, int tag) {
  translating([&] { check_peer("recv", peer); });
  return exchange("recv", peer, tensors, [&] { return inner_->recv(tensors, peer, tag); });
}

WorkPtr DelegateEngine::recvAnysource(Tensors& tensors, int tag) {
  // Gloo reports no death to a caller that waits for any rank; here only one can be meant.
  if (getSize() == 2) return recv(tensors, 1 - getRank(), tag);
  return exchange("recv", -1, tensors, [&] { return inner_->recvAnysource(tensors, tag); });
}

void DelegateEngine::startCoalescing() {
  coalescing_.begin();
  if (coalesces_ && watch_ != nullptr) inner_->startCoalescing();
}

WorkPtr DelegateEngine::endCoalescing() {
  std::vector<WorkPtr> works = coalescing_.end();
  if (coalesces_ && watch_ != nullptr) {
    WorkPtr all = translating([&] {
      return started(call("coalesced", -1, OpType::COALESCED, {}), options_->timeout,
                     [&] { return inner_->endCoalescing(); });
    });
    works.clear();
    if (all != nullptr) works.push_back(std::move(all));  // else nothing was issued
  }
  return c10::make_intrusive<WorkOfMany>(getRank(), std::move(works), continuations_);
}

void DelegateEngine::fail(const std::exception_ptr& why) {
  delegate_->give_up(code_of(why), what_of(why));
}

void DelegateEngine::leave(const std::string&) {
  // NCCL's shutdown() waits for what runs, holding a lock that its abort() needs: where a peer died
  // meanwhile, both would wait for ever.
  if (watch_ != nullptr) watch_->drain();
  if (delegate_->failure() == nullptr) inner_->shutdown();  // else it has been ended
  delegate_->leave({"none", -1, sequence_});
}

void DelegateEngine::abort() {
  delegate_->give_up({"none", -1, sequence_}, ErrorCode::kPoisoned,
                     concat("rank ", getRank(), " called abort()"));
}

}  // namespace fastcomm
