#include "engines/cpu/point_to_point.h"

#include <algorithm>
#include <cstring>

namespace fastcomm {

PointToPoint::PointToPoint(Transport& peers, size_t base)
    : peers_(peers), base_(base), lock_(peers.own_doorbell()), ring_peers_(peers.size()) {}

PointToPoint::~PointToPoint() = default;

PointToPoint::Peer& PointToPoint::sending_to(int peer) {
  Peer& found = ring_peers_[peer];
  if (found.sender == nullptr) found.sender = std::make_unique<RingSender>(peers_, base_, peer);
  return found;
}

PointToPoint::Peer& PointToPoint::receiving_from(int peer) {
  Peer& found = ring_peers_[peer];
  if (found.receiver == nullptr) {
    found.receiver = std::make_unique<RingReceiver>(peers_, base_, peer);
  }
  return found;
}

bool PointToPoint::post(const Pointer& operation) {
  const LookLock::Holder lock(lock_);
  if (stopped_) return false;
  if (operation->call().is_send) {
    post_send(operation);
  } else {
    post_recv(operation);
  }
  return true;
}

void PointToPoint::post_send(const Pointer& operation) {
  Peer& peer = sending_to(operation->call().peer);
  if (operation->call().bytes() > kEagerBytes) peer.sender->back_slots();
  ++unfinished_;
  if (!peer.waiting.empty() || !announce(peer, operation)) peer.waiting.push_back(operation);
}

bool PointToPoint::announce(Peer& peer, const Pointer& operation) {
  const PeerCall& call = operation->call();
  const auto number = peer.sender->post(call.tag, call.dtype, call.bytes(), call.data);
  if (!number) return false;
  end_announcing(call);
  operation->number_ = *number;
  operation->matched_ = true;
  if (call.bytes() <= kEagerBytes) {
    operation->note_met();
    end(operation, nullptr);
  } else {
    peer.announced.emplace(*number, operation);
  }
  return true;
}

bool PointToPoint::begin_announcing(int peer) {
  auto& count = peers_.own_control_block().announcing[peer];
  // Sequentially consistent, as take_elsewhere(): each side writes its word, and then reads the
  // other's. So this rank sees the peer's mark, or the peer sees this count.
  count.fetch_add(1, std::memory_order_seq_cst);
  if (peers_.control_block(peer).elsewhere.load(std::memory_order_seq_cst) == 0) return true;
  count.fetch_sub(1, std::memory_order_relaxed);  // nothing comes of it
  return false;
}

void PointToPoint::end_announcing(const PeerCall& call) {
  if (!call.two_ways || !call.is_send) return;
  // Release: a peer that sees the count without this message sees the message.
  peers_.own_control_block().announcing[call.peer].fetch_sub(1, std::memory_order_release);
}

bool PointToPoint::take_elsewhere() {
  const LookLock::Holder lock(lock_);
  elsewhere_ = true;
  peers_.own_control_block().elsewhere.store(1, std::memory_order_seq_cst);
  bool all = true;
  for (int from = 0; from < peers_.size() && !stopped_; ++from) {
    if (from == peers_.rank()) continue;
    Peer& peer = receiving_from(from);
    const ControlBlock& block = peers_.control_block(from);
    // An acquire, too: the messages that are not counted any more are seen below. Who has left
    // announces nothing.
    if (block.announcing[peers_.rank()].load(std::memory_order_seq_cst) != 0 &&
        block.left.load(std::memory_order_acquire) == 0) {
      all = false;
    }
    while (match(from, peer)) {
    }
  }
  return all;
}

void PointToPoint::post_recv(const Pointer& operation) {
  const int from = operation->call().peer;
  const int size = peers_.size();
  // All steps that may fail come first.
  if (from >= 0) receiving_from(from);
  for (int peer = 0; from < 0 && peer < size; ++peer) {
    if (peer != peers_.rank()) receiving_from(peer);
  }
  ++unfinished_;
  // A stray came before any message in the ring.
  for (int i = 1; i <= size; ++i) {
    const int peer = from >= 0 ? from : (last_served_ + i) % size;
    auto& strays = ring_peers_[peer].strays;
    const auto stray = std::find_if(strays.begin(), strays.end(), [&](const Stray& known) {
      return known.tag == operation->call().tag;
    });
    if (stray != strays.end()) {
      give(peer, ring_peers_[peer], operation, stray->dtype, stray->bytes, stray->number,
           stray->data.data());
      if (!operation->matched_) break;  // unlike: it waits until the group is given up
      strays.erase(stray);
      return;
    }
    if (from >= 0) break;
  }
  posted_.push_back(operation);
  ++(from < 0 ? expected_from_any_ : ring_peers_[from].expected);
  for (int i = 1; i <= size && !operation->matched_; ++i) {
    const int peer = from >= 0 ? from : (last_served_ + i) % size;
    if (peer != peers_.rank()) match(peer, ring_peers_[peer]);
    if (from >= 0) break;
  }
}

void PointToPoint::give(int from, Peer& peer, const Pointer& operation, DType dtype, uint64_t bytes,
                        uint32_t number, const char* data) {
  const PeerCall& call = operation->call();
  if (dtype != call.dtype || bytes != call.bytes()) {
    const DType known = static_cast<int>(dtype) < kNumDTypes ? dtype : DType::kOther;
    const int own = peers_.number_of(peers_.rank());
    mismatch_ = Mismatch{
        from, concat("rank ", own, " called ", operation->describe(), "; rank ",
                     peers_.number_of(from), " called ",
                     describe_message(true, known, bytes / dtype_size(known), own, call.tag))};
    to_tell_.store(true, std::memory_order_relaxed);
    return;
  }
  operation->matched_ = true;
  operation->note_met();
  operation->source_ = from;
  if (call.peer < 0) last_served_ = from;
  if (bytes <= kEagerBytes) {
    if (bytes != 0) std::memcpy(call.data, data, bytes);
    end(operation, nullptr);
    return;
  }
  operation->number_ = number;
  peer.incoming.push_back(operation);
  grant_more(peer);
}

bool PointToPoint::match(int from, Peer& peer) {
  bool moved = false;
  for (uint32_t i = 0; i < kRingCells; ++i) {  // a fast peer must not keep the lock
    const bool wanted = elsewhere_ || peer.expected + expected_from_any_ != 0;
    if (!wanted || mismatch_) return moved;
    const Cell* cell = peer.receiver == nullptr ? nullptr : peer.receiver->next();
    if (cell == nullptr) return moved;
    moved = true;
    const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const Pointer& known) {
      const PeerCall& call = known->call();
      return call.tag == cell->tag && (call.peer == from || call.peer < 0);
    });
    if (found != posted_.end()) {
      const Pointer operation = *found;
      give(from, peer, operation, cell->dtype, cell->bytes, peer.receiver->number(), cell->data);
      if (!operation->matched_) return true;
      posted_.erase(found);
      --(operation->call().peer < 0 ? expected_from_any_ : peer.expected);
    } else {
      const size_t held = cell->bytes <= kEagerBytes ? cell->bytes : 0;
      peer.strays.push_back({cell->tag, cell->dtype, cell->bytes, peer.receiver->number(),
                             std::vector<char>(cell->data, cell->data + held)});
    }
    peer.receiver->take();
  }
  return moved;
}

bool PointToPoint::grant_more(Peer& peer) {
  bool moved = false;
  for (const Pointer& operation : peer.incoming) {
    if (operation->granted_) continue;
    if (!peer.receiver->grant(operation->number_)) break;
    operation->granted_ = true;
    moved = true;
  }
  return moved;
}

bool PointToPoint::send_more(Peer& peer) {
  bool moved = false;
  while (!peer.waiting.empty() && announce(peer, peer.waiting.front())) {
    peer.waiting.pop_front();
    moved = true;
  }
  while (!peer.announced.empty()) {
    const auto number = peer.sender->next_grant();
    if (!number) break;
    const auto found = peer.announced.find(*number);
    if (found == peer.announced.end()) break;  // only a broken peer asks for it
    found->second->note_met();
    peer.streams.push_back(std::move(found->second));
    peer.announced.erase(found);
    moved = true;
  }
  for (uint32_t i = 0; i < kRingSlots && !peer.streams.empty() && peer.sender->can_fill(); ++i) {
    const Pointer operation = peer.streams.front();
    const uint64_t left = operation->call().bytes() - operation->moved_;
    const uint64_t piece = std::min<uint64_t>(left, peer.sender->piece_bytes());
    peer.sender->fill(operation->call().data + operation->moved_, piece);
    operation->moved_ += piece;
    moved = true;
    if (piece != left) continue;
    peer.streams.pop_front();
    end(operation, nullptr);
  }
  return moved;
}

bool PointToPoint::receive_more(int from, Peer& peer) {
  bool moved = match(from, peer);
  for (uint32_t i = 0; i < kRingSlots && !peer.incoming.empty(); ++i) {
    const char* data = peer.receiver->next_piece();
    if (data == nullptr) break;
    const Pointer operation = peer.incoming.front();
    const uint64_t left = operation->call().bytes() - operation->moved_;
    const uint64_t piece = std::min<uint64_t>(left, peer.receiver->piece_bytes());
    std::memcpy(operation->call().data + operation->moved_, data, piece);
    peer.receiver->drop_piece();
    operation->moved_ += piece;
    moved = true;
    if (piece != left) continue;
    peer.incoming.pop_front();
    peer.receiver->end_grant();
    grant_more(peer);
    end(operation, nullptr);
  }
  return moved;
}

bool PointToPoint::look() {
  bool moved = false;
  const int size = peers_.size(), first = last_served_ + 1;
  for (int i = 0; i < size; ++i) {
    const int from = (first + i) % size;
    Peer& peer = ring_peers_[from];
    if (peer.sender != nullptr) moved |= send_more(peer);
    if (peer.receiver != nullptr) moved |= receive_more(from, peer);
  }
  return moved;
}

bool PointToPoint::poll() {
  if (!busy()) return false;
  const LookLock::Holder lock(lock_, std::try_to_lock);
  return lock.held() && !stopped_ && look();
}

void PointToPoint::end(const Pointer& operation, const std::exception_ptr& error) {
  operation->over_ = true;
  --unfinished_;
  if (operation->in_background_) --background_;
  ended_.emplace_back(operation, error);
  to_deliver_.store(true, std::memory_order_relaxed);
}

void PointToPoint::deliver() {
  // Relaxed: the thread that set it looks here itself, later.
  if (!to_deliver_.load(std::memory_order_relaxed)) return;
  std::vector<std::pair<Pointer, std::exception_ptr>> ended;
  {
    const LookLock::Holder lock(lock_);
    ended.swap(ended_);
    to_deliver_.store(false, std::memory_order_relaxed);
  }
  if (ended.empty()) return;
  for (auto& [operation, error] : ended) operation->finish(std::move(error));
  // Another thread of this process may sleep until one of them is done.
  std::atomic_thread_fence(std::memory_order_seq_cst);  // doorbell.h: change first, then look
  ring_if_asleep(peers_.own_doorbell());
}

bool PointToPoint::in_background(const Pointer& operation, bool always) {
  const LookLock::Holder lock(lock_);
  if (operation->over_ || operation->in_background_) return false;
  const PeerCall& call = operation->call();
  if (!always && !call.is_send && call.bytes() <= kEagerBytes && posted_.size() < 2) return false;
  operation->in_background_ = true;
  // Against end_waiting(): each side counts first and then looks at the other's count.
  background_.fetch_add(1, std::memory_order_seq_cst);
  return waiting_.load(std::memory_order_seq_cst) == 0;
}

}  // namespace fastcomm
