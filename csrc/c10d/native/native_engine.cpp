#include "c10d/native/native_engine.h"

#include "c10d/calls/even.h"
#include "c10d/exception.h"
#include "c10d/native/launch.h"
#include "c10d/work_of_many.h"

namespace fastcomm {
namespace {

/// What else a monitored barrier that timed out says, in torch's words.
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

NativeEngine::NativeEngine(std::shared_ptr<Communicator> group, c10::intrusive_ptr<Options> options,
                           c10::intrusive_ptr<::c10d::Store> lane_store,
                           Continuations::Ptr continuations)
    : Engine(group->rank(), group->size(), std::move(options), std::move(continuations)),
      lanes_(std::move(group), std::move(lane_store), continuations_) {}

void NativeEngine::fail(const std::exception_ptr& why) {
  const std::string text = what_of(why);
  const size_t front = text[0] == '[' ? text.find("] ") : std::string::npos;  // it gets its own
  group()->failed("none", code_of(why), front == std::string::npos ? text : text.substr(front + 2));
}

void NativeEngine::abort() { lanes_.abort(concat("rank ", getRank(), " called abort()")); }

NativeEngine::WorkPtr NativeEngine::allreduce(Tensors& tensors,
                                              const ::c10d::AllreduceOptions& opts) {
  return translating([&] {
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

NativeEngine::WorkPtr NativeEngine::broadcast(Tensors& tensors,
                                              const ::c10d::BroadcastOptions& opts) {
  return translating([&] {
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

NativeEngine::WorkPtr NativeEngine::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  return translating([&] {
    return launch(prepare_reduce(site(), tensors, opts.reduceOp, opts.rootRank), opts.timeout,
                  opts.asyncOp);
  });
}

NativeEngine::WorkPtr NativeEngine::barrier(const ::c10d::BarrierOptions& opts) {
  Call call;
  call.kind = OpKind::kBarrier;
  return launch(
      call, opts.timeout, opts.asyncOp, {}, [] {},
      [&] { return Payload{::c10d::OpType::BARRIER, title_of(call), {}, {}, {}, {}, {}}; });
}

void NativeEngine::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  translating([&] {
    const Milliseconds limit = timeout_or_default(opts.timeout);
    const bool first = getRank() == 0;
    const std::shared_ptr<Communicator> group = lanes_.here(limit);
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

void NativeEngine::startCoalescing() { coalescing_.begin(); }

NativeEngine::WorkPtr NativeEngine::endCoalescing() {
  return c10::make_intrusive<WorkOfMany>(getRank(), coalescing_.end(), continuations_);
}

}  // namespace fastcomm
