// The sends and receives of one rank: matching, and transfer.
//
// The receiver pulls. A short message is done for its sender as soon as it lies in the ring of the
// pair (engines/cpu/peer_ring.h), with its announcement: one copy, one publication, nobody else's
// time. A long one is announced; the receiver grants it once it has found a receive for it, and
// sender and receiver copy it through the slots at the same time. If a ring is full a send waits
// here, in the order of posting; a call never blocks.
//
// Matching is by source and tag, in the order of posting on both sides. A receive from any rank
// gets the first message that is there; ranks take turns, starting after the one served last.
// Announcements are read only while some receive is without a message and could get one from that
// rank; a message found with another tag is put aside (the data of a short one on the heap, a long
// one stays in place). So no order of tags gets stuck, and messages to a rank that does not receive
// take no more of its memory than the ring. A message and its receive are compared, bytes and
// dtype, before anything is written; a mismatch gives the group up.
//
// Locking: one lock, held for a look at all rings, with at most a ring's content copied. It is the
// last to be taken: the Communicator's locks may be held around it, nothing is locked inside of it,
// and operations end outside of it (deliver). A thread that only looks just tries to get it
// (look_lock.h).
//
// Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engines/cpu/look_lock.h"
#include "engines/cpu/peer_operation.h"
#include "engines/cpu/peer_ring.h"

namespace fastcomm {

class PointToPoint {
 public:
  using Pointer = std::shared_ptr<PeerOperation>;

  /// `base` is the start of the rings in every rank's scratch.
  PointToPoint(Transport& peers, size_t base);
  ~PointToPoint();

  /// Takes an operation and does all that can be done at once; false once it was stopped. Raises
  /// Error(kSystem) if there is no memory for the rings.
  bool post(const Pointer& operation);
  /// Does all that can be done; true if anything moved.
  bool poll();
  /// Ends operations that are done, and those that stop() ended. Called without locks.
  void deliver();
  /// From now on nothing touches the memory of any operation; those that are not done end with
  /// `failure`.
  void stop(const std::exception_ptr& failure);
  /// Takes back an operation that no peer knows of; false if it is too late. One that has ended
  /// stays so.
  bool take_back(const Pointer& operation);

  // Ranks may get messages by another way, too (Communicator::take_elsewhere).
  /// Before a send to `peer` is posted: false if it has to go the other way.
  bool begin_announcing(int peer);
  /// From the first call on, peers send this rank nothing more. True once all that they have sent
  /// is here: matched, or put aside. Else call it again.
  bool take_elsewhere();

  /// True if there are operations that are not done. A hint for other threads.
  bool busy() const { return unfinished_.load(std::memory_order_relaxed) != 0; }

  /// A rank's fault: a message that does not fit its receive. Reported once.
  struct Mismatch {
    int peer;
    std::string text;
  };
  std::optional<Mismatch> take_mismatch();

  /// An operation that is not done and waits for a rank of `gone` (a set of bits) or, receiving
  /// from any rank, has nobody left to wait for; all messages that those ranks had published before
  /// they were found to be gone have been used. Nothing if another thread is at work just now: look
  /// again.
  struct Waiting {
    PeerCall call;
    int peer;  // of `gone`; PeerCall::kAnyRank if several might have sent it
  };
  std::optional<Waiting> waits_for(uint64_t gone);
  /// A peer's progress with an operation, as shown in messages.
  std::string progress_of(const PeerOperation& operation);

  // The progress thread drives while nobody waits, but only operations that need it. A call whose
  // thread comes to wait at once, as most do, does not wake it. It is needed for sends that are not
  // done, receives of long messages, and several receives at once.
  /// Marks an operation that is to go on by itself, for one of these reasons or `always`; true if
  /// nobody waits just now.
  bool in_background(const Pointer& operation, bool always);
  void begin_waiting() { waiting_.fetch_add(1, std::memory_order_seq_cst); }
  /// True if operations that are to go on by themselves are left.
  bool end_waiting() {
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
    return background_.load(std::memory_order_seq_cst) != 0;
  }
  bool any_background() const { return background_.load(std::memory_order_seq_cst) != 0; }
  bool needs_progress() const {
    return any_background() && waiting_.load(std::memory_order_seq_cst) == 0;
  }

 private:
  /// A message without a receive.
  struct Stray {
    int32_t tag;
    DType dtype;
    uint64_t bytes;
    uint32_t number;
    std::vector<char> data;
  };
  struct Peer {
    std::unique_ptr<RingSender> sender;
    std::deque<Pointer> waiting;            // for room in the ring
    std::map<uint32_t, Pointer> announced;  // long messages that are not granted, by number
    std::deque<Pointer> streams;            // granted long messages, in the order of grants

    std::unique_ptr<RingReceiver> receiver;
    std::list<Stray> strays;
    std::deque<Pointer> incoming;  // receives of long messages, in the order of their grants
    int expected = 0;              // receives without a message, from this rank
  };
  Peer& sending_to(int peer);
  Peer& receiving_from(int peer);
  void post_send(const Pointer& operation);
  void post_recv(const Pointer& operation);
  bool announce(Peer& peer, const Pointer& operation);
  /// The message lies in the ring, or never will.
  void end_announcing(const PeerCall& call);
  bool look();
  bool send_more(Peer& peer);
  bool receive_more(int from, Peer& peer);
  bool match(int from, Peer& peer);
  /// Gives a receive its message, if they are alike; `data` of a short one.
  void give(int from, Peer& peer, const Pointer& operation, DType dtype, uint64_t bytes,
            uint32_t number, const char* data);
  bool grant_more(Peer& peer);
  void end(const Pointer& operation, const std::exception_ptr& error);

  Transport& peers_;
  size_t base_;
  LookLock lock_;

  std::vector<Peer> ring_peers_;
  std::list<Pointer> posted_;  // receives without a message, in the order of posting
  int expected_from_any_ = 0;
  int last_served_ = 0;
  std::vector<std::pair<Pointer, std::exception_ptr>> ended_;
  std::optional<Mismatch> mismatch_;
  bool stopped_ = false;
  bool elsewhere_ = false;  // further messages come by another way
  std::atomic<bool> to_deliver_{false}, to_tell_{false};
  std::atomic<int> unfinished_{0}, background_{0}, waiting_{0};
};

}  // namespace fastcomm
