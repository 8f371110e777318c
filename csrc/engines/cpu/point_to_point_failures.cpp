// Failures of sends and receives, and reports on those that do not end.
#include <algorithm>

#include "engines/cpu/point_to_point.h"

namespace fastcomm {

void PointToPoint::stop(const std::exception_ptr& failure) {
  const LookLock::Holder lock(lock_);
  if (stopped_) return;
  stopped_ = true;
  for (const Pointer& operation : posted_) end(operation, failure);
  posted_.clear();
  for (Peer& peer : ring_peers_) {
    for (auto* queue : {&peer.waiting, &peer.streams, &peer.incoming}) {
      for (const Pointer& operation : *queue) end(operation, failure);
      queue->clear();
    }
    for (const auto& [number, operation] : peer.announced) end(operation, failure);
    peer.announced.clear();
    peer.strays.clear();
  }
}

bool PointToPoint::take_back(const Pointer& operation) {
  const LookLock::Holder lock(lock_);
  if (operation->over_) return true;  // it has ended, and its end is about to be told
  if (stopped_ || operation->matched_) return false;
  const int from = operation->call().peer;
  if (operation->call().is_send) {
    auto& waiting = ring_peers_[from].waiting;
    waiting.erase(std::find(waiting.begin(), waiting.end(), operation));
    end_announcing(operation->call());
  } else {
    posted_.remove(operation);
    --(from < 0 ? expected_from_any_ : ring_peers_[from].expected);
  }
  operation->taken_back_ = true;
  end(operation, nullptr);
  return true;
}

std::optional<PointToPoint::Mismatch> PointToPoint::take_mismatch() {
  if (!to_tell_.load(std::memory_order_relaxed)) return std::nullopt;
  const LookLock::Holder lock(lock_);
  return to_tell_.exchange(false) ? mismatch_ : std::nullopt;
}

std::optional<PointToPoint::Waiting> PointToPoint::waits_for(uint64_t gone) {
  const LookLock::Holder lock(lock_, std::try_to_lock);
  if (!lock.held() || stopped_) return std::nullopt;
  // The state of the peers was read before, so all that they published before it is seen here. A
  // look takes a ring's content; after two of them there is no more.
  look();
  look();
  if (mismatch_) return std::nullopt;
  const uint64_t everybody = (peers_.size() == 64 ? 0 : uint64_t{1} << peers_.size()) - 1;
  gone &= everybody;
  const bool all_gone = (gone | uint64_t{1} << peers_.rank()) == everybody;
  // In a group of two, a receive from any rank waits for the other rank.
  const int anyone = peers_.size() == 2 ? 1 - peers_.rank() : PeerCall::kAnyRank;
  for (const Pointer& operation : posted_) {
    const int from = operation->call().peer;
    if (from >= 0 ? (gone >> from & 1) != 0 : all_gone) {
      return Waiting{operation->call(), from >= 0 ? from : anyone};
    }
  }
  for (int rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = ring_peers_[rank];
    if ((gone >> rank & 1) == 0) continue;
    for (const auto* queue : {&peer.waiting, &peer.streams, &peer.incoming}) {
      if (!queue->empty()) return Waiting{queue->front()->call(), rank};
    }
    if (!peer.announced.empty()) return Waiting{peer.announced.begin()->second->call(), rank};
  }
  return std::nullopt;
}

std::string PointToPoint::progress_of(const PeerOperation& operation) {
  const PeerCall& call = operation.call();
  const std::string doing = call.peer < 0 ? "" : peers_.activity(call.peer);  // takes a while
  const std::string now = doing.empty() ? "" : ": " + doing;
  const LookLock::Holder lock(lock_);
  if (operation.moved_ != 0) {
    return concat(operation.moved_, " of ", call.bytes(), " bytes have gone through");
  }
  if (call.is_send) {
    return concat(peers_.describe(call.peer),
                  operation.matched_ ? " has not called the recv that fits it"
                                     : " has not received the messages before it",
                  now);
  }
  std::string text;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (call.peer >= 0 && rank != call.peer) continue;
    std::string tags;
    int listed = 0;
    for (const Stray& stray : ring_peers_[rank].strays) {
      if (++listed > 16) break;
      tags += concat(tags.empty() ? "" : ", ", stray.tag);
    }
    if (listed > 16) tags += ", ...";
    if (tags.empty()) continue;
    text += concat(text.empty() ? "" : "; ", peers_.describe(rank), " has sent tags [", tags,
                   "] that nobody received");
  }
  if (!text.empty()) return text;
  return call.peer < 0 ? "nobody has sent it"
                       : concat(peers_.describe(call.peer), " has not sent it", now);
}

}  // namespace fastcomm
