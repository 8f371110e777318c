// send, recv, and recv from any rank: over shared memory.

#include "c10d/backend.h"
#include "c10d/exception.h"
#include "c10d/peer_work.h"

namespace fastcomm {

using WorkPtr = FastcommBackend::WorkPtr;

namespace {

const at::Tensor& checked(bool is_send, const Tensors& tensors, int tag) {
  const char* name = is_send ? "send" : "recv";
  FC_CHECK(tag >= 0, name, ": a tag is 0 or more, not ", tag);
  const at::Tensor& tensor = only(name, tensors);
  is_send ? require_dense(name, tensor) : require_writable(name, tensor);
  return tensor;
}

void check_peer(const char* name, int peer, int rank, int size) {
  FC_CHECK(peer >= 0 && peer < size, name, ": rank ", peer, " is not in a group of ", size);
  FC_CHECK(peer != rank, name, ": the peer is this rank itself, ", rank);
}

}  // namespace

WorkPtr FastcommBackend::send(Tensors& tensors, int peer, int tag) {
  return translating([&]() -> WorkPtr {
    check_peer("send", peer, getRank(), getSize());
    if (whole_ != nullptr) return whole_->send(tensors, peer, tag);
    return noted(PeerWork::start(group(), checked(true, tensors, tag), true, peer, tag,
                                 options_->timeout, continuations_));
  });
}

WorkPtr FastcommBackend::recv(Tensors& tensors, int peer, int tag) {
  return translating([&]() -> WorkPtr {
    check_peer("recv", peer, getRank(), getSize());
    if (whole_ != nullptr) return whole_->recv(tensors, peer, tag);
    return noted(PeerWork::start(group(), checked(false, tensors, tag), false, peer, tag,
                                 options_->timeout, continuations_));
  });
}

WorkPtr FastcommBackend::recvAnysource(Tensors& tensors, int tag) {
  return translating([&]() -> WorkPtr {
    if (whole_ != nullptr) return whole_->recvAnysource(tensors, tag);
    FC_CHECK(getSize() > 1, "recv: there is no other rank in a group of one");
    return noted(PeerWork::start(group(), checked(false, tensors, tag), false, PeerCall::kAnyRank,
                                 tag, options_->timeout, continuations_));
  });
}

}  // namespace fastcomm
