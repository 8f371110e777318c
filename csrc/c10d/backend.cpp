#include "c10d/backend.h"

#include <ATen/ops/empty.h>
#include <Python.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/compat.h"
#include "c10d/exception.h"
#include "c10d/groups.h"
#include "c10d/launch.h"
#include "c10d/shared_tensor.h"
#include "c10d/store_bootstrap.h"
#include "c10d/work_of_many.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// Lets the GIL go for as long as this lives, if the thread holds it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// What a monitored barrier that timed out says besides, in torch's words.
std::string monitored(bool first, int rank, const std::vector<int>& missing) {
  if (!first) {
    return concat("Rank ", rank,
                  " successfully reached monitoredBarrier, but received errors while waiting for "
                  "send/recv from rank 0");
  }
  std::string ranks;
  for (const int each : missing) ranks += concat(ranks.empty() ? "" : ", ", each);
  return concat(missing.size() == 1 ? "Rank " : "Ranks ", ranks,
                " failed to pass monitoredBarrier");
}

Payload in_place(::c10d::OpType type, const Call& call, const Tensors& tensors,
                 const Buffer& buffer) {
  return Payload{type, title_of(call), tensors, tensors, {}, {buffer}, {}};
}

}  // namespace

FastcommBackend::FastcommBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                 Milliseconds timeout, c10::intrusive_ptr<::c10d::Store> lane_store,
                                 std::shared_ptr<void> kept)
    : ::c10d::Backend(rank, size),
      kept_(std::move(kept)),
      options_(c10::make_intrusive<Options>(kBackendName, timeout)),
      continuations_(Continuations::create()) {
  translating([&] {
    StoreBootstrap bootstrap(store);
    Formed formed = form_group(bootstrap, rank, size, deadline_after(timeout));
    traits_ = std::move(formed.traits);
    if (formed.group == nullptr) return;
    lanes_ =
        std::make_unique<Lanes>(std::move(formed.group), std::move(lane_store), continuations_);
  });
}

FastcommBackend::~FastcommBackend() {
  // Threads that end here (another backend's, the continuations') may need the GIL to drop what they
  // hold of Python. Whoever drops the last reference may hold it: a Python object (always so on torch
  // 2.14), or torch's C++, as when a DistributedDataParallel outlives its group.
  const WithoutGil no_gil;
  if (forked_from_endpoint()) {
    if (whole_ != nullptr) whole_.release();  // a child of fork() does not have the threads to join
  } else {
    continuations_->close();
  }
  lanes_.reset();
  whole_.reset();
}

void FastcommBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (whole_ != nullptr) whole_->setTimeout(timeout);
}

void FastcommBackend::shutdown() {
  if (forked_from_endpoint()) return;
  if (whole_ != nullptr) return whole_->shutdown();
  const std::string failure = g_failure ? g_failure(false) : "";
  lanes_->leave(failure.empty() ? "" : "destroyed its process group because of " + failure);
}

void FastcommBackend::abort() {
  if (forked_from_endpoint()) return;
  if (whole_ != nullptr) return whole_->abort();
  lanes_->abort(concat("rank ", getRank(), " called abort()"));
}

::c10d::ErrorType FastcommBackend::getError() {
  if (whole_ != nullptr) return whole_->getError();
  try {
    if (const auto failure = group()->failure()) std::rethrow_exception(failure);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTimeout) return ::c10d::ErrorType::TIMEOUT;
    const bool remote =
        error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kPeerLeft;
    return remote ? ::c10d::ErrorType::REMOTE_ERROR : ::c10d::ErrorType::COMM_ERROR;
  }
  return ::c10d::ErrorType::SUCCESS;
}

FastcommBackend::BackendPtr FastcommBackend::split(const c10::intrusive_ptr<::c10d::Store>& store,
                                                   const std::vector<int>& ranks,
                                                   const c10::intrusive_ptr<Options>& opts) {
  const auto found = std::find(ranks.begin(), ranks.end(), getRank());
  if (found == ranks.end()) return nullptr;
  const auto under = [&store](const char* prefix) {
    return c10::make_intrusive<::c10d::PrefixStore>(prefix, store);
  };
  return c10::make_intrusive<FastcommBackend>(
      under("fastcomm/"), static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()),
      opts == nullptr ? options_->timeout : opts->timeout, under("fastcomm/lanes/"), kept_);
}

bool FastcommBackend::supportsTensorAlloc(c10::DeviceIndex) {
  return traits_.native && getSize() > 1;
}

at::Tensor FastcommBackend::allocateTensor(long size, at::TensorOptions options) {
  if (options.device().is_cpu()) {
    try {
      return shared_empty({size}, c10::typeMetaToScalarType(options.dtype()));
    } catch (const Error& error) {
      TORCH_WARN_ONCE("fastcomm: a bucket of ", size,
                      " elements lies in ordinary memory: ", error.what());
    }
  }
  return at::empty({size}, options);
}

Milliseconds FastcommBackend::timeout_or_default(Milliseconds timeout) const {
  return timeout == ::c10d::kUnsetTimeout ? options_->timeout : timeout;
}

FastcommBackend::WorkPtr FastcommBackend::allreduce(Tensors& tensors,
                                                    const ::c10d::AllreduceOptions& opts) {
  return translating([&] {
    if (whole_ != nullptr) return whole_->allreduce(tensors, opts);
    const at::Tensor& tensor = only("all_reduce", tensors);
    if (tensor.layout() == at::kSparse) return allreduce_sparse(tensors, opts);
    require_writable("all_reduce", tensor);
    require_reduction("all_reduce", tensor, opts.reduceOp);
    Call call;
    call.kind = OpKind::kAllReduce;
    set_reduction(call, opts.reduceOp);
    Buffer buffer(tensor);
    call.dtype = buffer.dtype();
    call.count = buffer.count();
    call.input = call.output = buffer.data();
    return launch(
        call, opts.timeout, opts.asyncOp, tensors, [&] { buffer.write_back(); },
        [&] { return in_place(::c10d::OpType::ALLREDUCE, call, tensors, buffer); });
  });
}

FastcommBackend::WorkPtr FastcommBackend::broadcast(Tensors& tensors,
                                                    const ::c10d::BroadcastOptions& opts) {
  return translating([&] {
    if (whole_ != nullptr) return whole_->broadcast(tensors, opts);
    const at::Tensor& tensor = only("broadcast", tensors);
    Call call;
    call.kind = OpKind::kBroadcast;
    call.root = checked_root("broadcast", opts.rootRank, getSize());
    const bool is_root = call.root == getRank();
    is_root ? require_dense("broadcast", tensor) : require_writable("broadcast", tensor);
    Buffer buffer(tensor);
    call.dtype = buffer.dtype();
    call.count = buffer.count();
    call.output = buffer.data();
    note_type(call, tensor);
    return launch(
        call, opts.timeout, opts.asyncOp, tensors,
        [&] {
          if (!is_root) buffer.write_back();
        },
        [&] {
          Payload payload = in_place(::c10d::OpType::BROADCAST, call, tensors, buffer);
          if (is_root) std::swap(payload.inputs, payload.outputs);
          return payload;
        });
  });
}

FastcommBackend::WorkPtr FastcommBackend::reduce(Tensors& tensors,
                                                 const ::c10d::ReduceOptions& opts) {
  return translating([&] {
    if (whole_ != nullptr) return whole_->reduce(tensors, opts);
    Prepared made(OpKind::kReduce, ::c10d::OpType::REDUCE);
    const at::Tensor& tensor = only("reduce", tensors);
    made.call.root = checked_root("reduce", opts.rootRank, getSize());
    made.reduce(opts.reduceOp, tensor);
    const bool is_root = made.call.root == getRank();
    const Buffer buffer = is_root ? made.write(tensor) : made.read(tensor);
    made.of(buffer);
    made.call.input = buffer.data();
    if (is_root) made.call.output = buffer.data();
    made.payload.value = made.payload.shown = tensors;
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

FastcommBackend::WorkPtr FastcommBackend::barrier(const ::c10d::BarrierOptions& opts) {
  if (whole_ != nullptr) return whole_->barrier(opts);
  Call call;
  call.kind = OpKind::kBarrier;
  return launch(
      call, opts.timeout, opts.asyncOp, {}, [] {},
      [&] { return Payload{::c10d::OpType::BARRIER, title_of(call), {}, {}, {}, {}, {}}; });
}

void FastcommBackend::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  if (whole_ != nullptr) return whole_->monitoredBarrier(opts, wait_all_ranks);
  translating([&] {
    const Milliseconds limit = timeout_or_default(opts.timeout);
    const bool first = getRank() == 0;
    const std::shared_ptr<Communicator> group = lanes_->here(limit);
    if (first && limit == Milliseconds(0)) {
      throw Error(ErrorCode::kTimeout,
                  message_front(0, getSize(), -1, "barrier", group->sequence()) +
                      "Rank 0 timed out in monitoredBarrier: its timeout is 0");
    }
    Call call;
    call.kind = OpKind::kBarrier;
    const auto operation = group->run(call, limit, g_interrupt_check);
    if (operation->error() == nullptr) return;
    std::vector<int> missing = operation->late();
    if (!wait_all_ranks && missing.size() > 1) missing.resize(1);
    try {
      std::rethrow_exception(operation->error());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      throw Error(error.code(), concat(error.what(), ". ", monitored(first, getRank(), missing)));
    }
  });
}

void FastcommBackend::startCoalescing() {
  const std::lock_guard<std::mutex> lock(coalesced_mutex_);
  // What an exception has left open ends here.
  coalesced_[std::this_thread::get_id()].clear();
  coalescing_ = static_cast<int>(coalesced_.size());
}

bool FastcommBackend::coalescing() const {
  if (coalescing_ == 0) return false;  // this thread's own change is seen
  const std::lock_guard<std::mutex> lock(coalesced_mutex_);
  return coalesced_.count(std::this_thread::get_id()) != 0;
}

FastcommBackend::WorkPtr FastcommBackend::noted(WorkPtr work) {
  if (coalescing_ == 0) return work;
  const std::lock_guard<std::mutex> lock(coalesced_mutex_);
  const auto open = coalesced_.find(std::this_thread::get_id());
  if (open != coalesced_.end()) open->second.push_back(work);
  return work;
}

FastcommBackend::WorkPtr FastcommBackend::endCoalescing() {
  const std::lock_guard<std::mutex> lock(coalesced_mutex_);
  auto issued = coalesced_.extract(std::this_thread::get_id());
  coalescing_ = static_cast<int>(coalesced_.size());
  auto works = issued.empty() ? std::vector<WorkPtr>{} : std::move(issued.mapped());
  return c10::make_intrusive<WorkOfMany>(getRank(), std::move(works), continuations_);
}

}  // namespace fastcomm
