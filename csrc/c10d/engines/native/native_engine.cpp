#include "c10d/engines/native/native_engine.h"

#include <utility>
#include <vector>

#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"
#include "c10d/requests/plain.h"
#include "c10d/works/peer_work.h"
#include "tensors/gradients.h"

namespace fastcomm {
namespace {

/// Further text of rank 0's monitored barrier that timed out, in torch's words.
std::string missing_in_barrier(const std::vector<int>& missing) {
  std::string ranks;
  for (const int each : missing) ranks += concat(ranks.empty() ? "" : ", ", each);
  return concat(missing.size() == 1 ? "Rank " : "Ranks ", ranks,
                " failed to pass monitoredBarrier");
}

}  // namespace

NativeEngine::NativeEngine(std::shared_ptr<Communicator> group, GroupContext context,
                           c10::intrusive_ptr<::c10d::Store> communicator_store)
    : Engine(std::move(context)),
      communicators_(std::move(group), std::move(communicator_store), continuations()) {}

bool NativeEngine::takes(const Request& request) const {
  if (!request.is_over_list() || request.outputs.empty()) return true;
  // One rank alone sends nothing: its gradients are summed in place.
  const at::Tensor& first = request.outputs[0];
  return (size() > 1 || first.is_cpu() || first.is_meta()) &&
         fits_slots(request.outputs, *request.gradients, traits().layout, size());
}

WorkPtr NativeEngine::submit(const Request& request) {
  if (request.is_message()) return exchange(request);
  if (!request.async) {
    Call call;
    if (set_plain_call({rank(), size()}, request, call)) {
      call.record = request.end.record;
      return run(request, call, Held{}, /*is_last=*/true);
    }
  }
  Calls calls = calls_of({rank(), size()}, request);
  WorkPtr work;
  for (Prepared& each : calls) {
    const bool is_last = &each == &calls.back();
    if (&each == &calls.front()) each.call.record = request.end.record;
    work = launch(request, each, is_last);
    if (!is_last && work != nullptr && work->isCompleted() && !work->isSuccess()) break;
  }
  return work;
}

NativeWork::About NativeEngine::about(const Request& request, bool is_last) const {
  return {rank(), request.type, is_last ? request.value() : Tensors{}, continuations()};
}

WorkPtr NativeEngine::launch(const Request& request, Prepared& made, bool is_last) {
  if (!request.async) return run(request, made.call, std::move(made.held), is_last);
  ++calls_;
  const Milliseconds limit = timeout_or_default(request.timeout);
  return NativeWork::start(communicators_.here(limit), made.call, limit, std::move(made.held),
                           about(request, is_last));
}

WorkPtr NativeEngine::run(const Request& request, const Call& call, Held held, bool is_last) {
  ++calls_;
  const Milliseconds limit = timeout_or_default(request.timeout);
  const auto operation = communicators_.here(limit)->run(call, limit, g_interrupt_check);
  if (operation->error() != nullptr) {
    return NativeWork::failed(operation->error(), std::move(held), about(request, is_last));
  }
  held.write_back();
  return nullptr;  // means "done" to c10d for a synchronous call
}

void NativeEngine::run(const ShortCall& call, const CallRecord& record, Milliseconds timeout) {
  ++calls_;
  const auto done = group()->run(call, record, timeout_or_default(timeout), g_interrupt_check);
  if (const auto error = done->error()) std::rethrow_exception(error);
}

WorkPtr NativeEngine::exchange(const Request& request) {
  const bool is_send = request.kind == OpKind::kSend;
  const char* const name = request.name();
  FC_CHECK(request.tag >= 0, name, ": a tag is 0 or more, not ", request.tag);
  FC_CHECK(size() > 1, name, ": there is no other rank in a group of one");
  const at::Tensor& tensor = only(name, is_send ? request.inputs : request.outputs);
  is_send ? require_dense(name, tensor) : require_writable(name, tensor);
  static_assert(PeerCall::kAnyRank == Request::kNoRank);
  return PeerWork::start(group(), tensor, is_send, request.peer, request.tag,
                         timeout_or_default(request.timeout), continuations(), request.end.record);
}

void NativeEngine::monitored_barrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const Milliseconds limit = timeout_or_default(opts.timeout);
  const bool first = rank() == 0;
  const std::shared_ptr<Communicator> group = communicators_.here(limit);
  if (first && limit == Milliseconds(0)) {
    throw Error(ErrorCode::kTimeout, message_front(0, size(), -1, "barrier", group->sequence()) +
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
    throw Error(error.code(),
                concat(error.what(), ". ",
                       first ? missing_in_barrier(missing) : came_to_monitored_barrier(rank())));
  }
}

void NativeEngine::fail(const std::exception_ptr& why) {
  const std::string text = what_of(why);
  const size_t front = text[0] == '[' ? text.find("] ") : std::string::npos;  // it gets its own
  group()->failed("none", code_of(why), front == std::string::npos ? text : text.substr(front + 2));
}

void NativeEngine::abort() { communicators_.abort(concat("rank ", rank(), " called abort()")); }

void NativeEngine::gather_bytes(const void* own, void* all, size_t bytes, uint64_t signature,
                                std::string what_for) {
  Call call;
  call.kind = OpKind::kAllGather;
  call.dtype = DType::kOther;
  call.count = bytes;
  call.input = own;
  for (int peer = 0; peer < size(); ++peer) {
    call.outputs.push_back(static_cast<char*>(all) + static_cast<size_t>(peer) * bytes);
  }
  call.signature = signature;
  call.detail = std::move(what_for);
  const auto done = group()->run(call, timeout(), g_interrupt_check);
  if (const auto error = done->error()) std::rethrow_exception(error);
}

}  // namespace fastcomm
