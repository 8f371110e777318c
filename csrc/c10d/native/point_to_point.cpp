// send, recv, and recv from any rank: over shared memory.

#include "c10d/exception.h"
#include "c10d/native/native_engine.h"
#include "c10d/native/peer_work.h"

namespace fastcomm {

using WorkPtr = NativeEngine::WorkPtr;

namespace {

const at::Tensor& checked(bool is_send, const Tensors& tensors, int tag) {
  const char* name = is_send ? "send" : "recv";
  FC_CHECK(tag >= 0, name, ": a tag is 0 or more, not ", tag);
  const at::Tensor& tensor = only(name, tensors);
  is_send ? require_dense(name, tensor) : require_writable(name, tensor);
  return tensor;
}

}  // namespace

WorkPtr NativeEngine::send(Tensors& tensors, int peer, int tag) {
  return translating([&]() -> WorkPtr {
    check_peer("send", peer);
    return coalescing_.noted(PeerWork::start(group(), checked(true, tensors, tag), true, peer, tag,
                                             options_->timeout, continuations_));
  });
}

WorkPtr NativeEngine::recv(Tensors& tensors, int peer, int tag) {
  return translating([&]() -> WorkPtr {
    check_peer("recv", peer);
    return coalescing_.noted(PeerWork::start(group(), checked(false, tensors, tag), false, peer,
                                             tag, options_->timeout, continuations_));
  });
}

WorkPtr NativeEngine::recvAnysource(Tensors& tensors, int tag) {
  return translating([&]() -> WorkPtr {
    FC_CHECK(getSize() > 1, "recv: there is no other rank in a group of one");
    return coalescing_.noted(PeerWork::start(group(), checked(false, tensors, tag), false,
                                             PeerCall::kAnyRank, tag, options_->timeout,
                                             continuations_));
  });
}

}  // namespace fastcomm
