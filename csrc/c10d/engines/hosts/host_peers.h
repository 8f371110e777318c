// Sends and receives between the ranks of one host, of a group over several.
//
// Such a message goes through shared memory, those between hosts by the backend for the group as a
// whole. A receive from any rank of the group may get either, and only that backend can wait for
// both. So the first one of a rank turns that rank's messages: from then on all of them come by the
// backend. The rank marks that in shared memory, and senders of its host look there each time.
//
// Order: messages of a pair keep theirs. Those that were sent before the mark was seen are in
// memory when the turn ends (Communicator::take_elsewhere), and later receives look there first.
// Receives that were posted before and have no message then are handed to the backend, in their
// order. tests/model/message_turn.pml is a model of this.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "c10d/engines/delegate/delegate_engine.h"
#include "c10d/engines/hosts/host_peer_work.h"
#include "coll/host_layout.h"

namespace fastcomm {

/// Thread-safe.
class HostPeers {
 public:
  /// `whole` lives longer.
  HostPeers(std::shared_ptr<Communicator> inside, HostLayout layout,
            std::shared_ptr<HostFailures> failures, DelegateEngine& whole);

  bool takes(const Request& request) const {
    return layout_.ranks_per_host() > 1 &&
           (request.peer == Request::kNoRank || layout_.host_of(request.peer) == layout_.own);
  }
  WorkPtr submit(const Request& request, Milliseconds timeout, Continuations::Ptr continuations);

 private:
  using Receive = c10::weak_intrusive_ptr<HostPeerWork>;

  WorkPtr receive(c10::intrusive_ptr<HostPeerWork> work);
  /// Turns this rank's messages, with the lock. Returns when that is done.
  void turn(const HostPeerWork& because);
  /// Hands a receive to the backend, unless it has its message.
  void hand_over(HostPeerWork& work) const;
  /// The same message by the backend.
  WorkPtr by_whole(const HostPeerWork& work) const;

  const std::shared_ptr<Communicator> inside_;
  const HostLayout layout_;
  const std::shared_ptr<HostFailures> failures_;
  DelegateEngine& whole_;
  std::mutex mutex_;             // receives are posted in one order, also while they turn
  std::list<Receive> receives_;  // that may not have ended
  size_t most_ = 64;             // of them, before those that have ended are dropped
  bool turned_ = false;
};

}  // namespace fastcomm
