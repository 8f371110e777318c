#include "c10d/engines/hosts/host_peers.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "c10d/life/hooks.h"
#include "core/call_site.h"
#include "transport/fork.h"

namespace fastcomm {

HostPeers::HostPeers(std::shared_ptr<Communicator> inside, HostLayout layout,
                     std::shared_ptr<HostFailures> failures, DelegateEngine& whole)
    : inside_(std::move(inside)),
      layout_(std::move(layout)),
      failures_(std::move(failures)),
      whole_(whole) {}

WorkPtr HostPeers::submit(const Request& request, Milliseconds timeout,
                          Continuations::Ptr continuations) {
  const bool is_send = request.kind == OpKind::kSend;
  const bool from_any = request.peer == Request::kNoRank;
  const char* const name = request.name();
  FC_CHECK(request.tag >= 0, name, ": a tag is 0 or more, not ", request.tag);
  const at::TensorList tensors = is_send ? request.inputs : request.outputs;
  const at::Tensor& tensor = only(name, tensors);
  is_send ? require_dense(name, tensor) : require_writable(name, tensor);
  if (const auto failure = whole_.delegate()->failed_before(name)) std::rethrow_exception(failure);
  HostPeerWork::Message message{{name, request.peer, whole_.submitted(), call_site()},
                                whole_.rank(),
                                from_any ? PeerCall::kAnyRank : layout_.place_of(request.peer),
                                request.tag,
                                is_send};
  check_not_forked([&] { return whole_.delegate()->front(message.subject); });
  auto work = c10::make_intrusive<HostPeerWork>(failures_, inside_, std::move(message), tensor,
                                                timeout, std::move(continuations));
  work->tell(request.end.record);
  if (!is_send) return receive(std::move(work));
  if (work->start()) return work;
  return by_whole(*work);
}

WorkPtr HostPeers::receive(c10::intrusive_ptr<HostPeerWork> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (work->message().peer == PeerCall::kAnyRank && !turned_) turn(*work);
  work->start();
  if (turned_) {
    hand_over(*work);
    return work;
  }
  if (receives_.size() >= most_) {
    receives_.remove_if([](const Receive& each) {
      const auto held = each.lock();
      return held == nullptr || held->has_ended();
    });
    most_ = std::max<size_t>(64, 2 * receives_.size());
  }
  receives_.emplace_back(work);
  return work;
}

void HostPeers::turn(const HostPeerWork& because) {
  const Delegate::Subject& subject = because.message().subject;
  const Deadline deadline = deadline_after(because.timeout());
  while (!inside_->take_elsewhere()) {  // a peer is in the middle of a send, or its ring was full
    if (const auto failure = whole_.failure()) std::rethrow_exception(failure);
    if (const auto failure = inside_->failure()) {
      std::rethrow_exception(failures_->of(subject, failure));
    }
    if (Clock::now() > deadline) {
      std::rethrow_exception(whole_.delegate()->overdue(subject, because.timeout()));
    }
    if (g_interrupt_check) g_interrupt_check();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  turned_ = true;
  for (const Receive& each : receives_) {
    if (const auto held = each.lock()) hand_over(*held);
  }
  receives_.clear();
}

void HostPeers::hand_over(HostPeerWork& work) const {
  work.go_elsewhere([this](const HostPeerWork& of) { return by_whole(of); });
}

WorkPtr HostPeers::by_whole(const HostPeerWork& work) const {
  const HostPeerWork::Message& message = work.message();
  std::vector<at::Tensor> bytes = work.bytes();
  Request request;
  request.kind = message.is_send ? OpKind::kSend : OpKind::kRecv;
  request.type = message.is_send ? ::c10d::OpType::SEND : ::c10d::OpType::RECV;
  request.timeout = work.timeout();
  request.async = true;
  (message.is_send ? request.inputs : request.outputs) = bytes;
  request.peer = message.subject.peer;
  request.tag = message.tag;
  const at::DisableRecordFunctionGuard once;  // a profiler has seen the call
  return whole_.submit(request, [&](const Delegate::Subject&) {
    ::c10d::Backend& backend = *whole_.inner();
    if (message.is_send) return backend.send(bytes, request.peer, message.tag);
    return request.peer == Request::kNoRank ? backend.recvAnysource(bytes, message.tag)
                                            : backend.recv(bytes, request.peer, message.tag);
  });
}

}  // namespace fastcomm
