// send, recv, and recv from any rank: native where the ranks share memory.

#include "c10d/backend.h"
#include "c10d/exception.h"
#include "c10d/peer_work.h"

namespace fastcomm {

using Tensors = FastcommBackend::Tensors;
using WorkPtr = FastcommBackend::WorkPtr;

namespace {

const at::Tensor& checked(const char* name, const Tensors& tensors, int tag) {
  FC_CHECK(tensors.size() == 1, name, ": takes one tensor a rank, not ", tensors.size());
  FC_CHECK(tag >= 0, name, ": a tag is 0 or more, not ", tag);
  if (!is_native_tensor(tensors[0])) {
    throw Error(ErrorCode::kUnsupported,
                concat(name, ": takes dense tensors on the CPU, not one on ", tensors[0].device(),
                       " with the layout ", tensors[0].layout(),
                       tensors[0].is_quantized() ? ", quantized" : ""));
  }
  return tensors[0];
}

void check_peer(const char* name, int peer, int rank, int size) {
  FC_CHECK(peer >= 0 && peer < size, name, ": rank ", peer, " is not in a group of ", size);
  FC_CHECK(peer != rank, name, ": the peer is this rank itself, ", rank);
}

}  // namespace

WorkPtr FastcommBackend::send(Tensors& tensors, int peer, int tag) {
  return translating([&]() -> WorkPtr {
    check_peer("send", peer, getRank(), getSize());
    if (group() == nullptr) return stock()->send(tensors, peer, tag);
    return PeerWork::start(group(), checked("send", tensors, tag), true, peer, tag,
                           options_->timeout, continuations_);
  });
}

WorkPtr FastcommBackend::recv(Tensors& tensors, int peer, int tag) {
  return translating([&]() -> WorkPtr {
    check_peer("recv", peer, getRank(), getSize());
    if (group() == nullptr) return stock()->recv(tensors, peer, tag);
    return PeerWork::start(group(), checked("recv", tensors, tag), false, peer, tag,
                           options_->timeout, continuations_);
  });
}

WorkPtr FastcommBackend::recvAnysource(Tensors& tensors, int tag) {
  return translating([&]() -> WorkPtr {
    if (group() == nullptr || getSize() == 1) return stock()->recvAnysource(tensors, tag);
    return PeerWork::start(group(), checked("recv", tensors, tag), false, PeerCall::kAnyRank, tag,
                           options_->timeout, continuations_);
  });
}

}  // namespace fastcomm
