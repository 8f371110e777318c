// The interface of every transport: a host-side object that owns a group's memory, and gives
// schedules a view of it.
//
// Implementations: transport/local (ranks are threads of one process), transport/shm (ranks are
// processes of one host).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "transport/control_block.h"
#include "transport/doorbell.h"
#include "transport/peer_view.h"

namespace fastcomm {

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  int rank() const { return view_.rank; }
  int size() const { return view_.size; }
  const PeerView& view() const { return view_; }

  ControlBlock& control_block(int rank) const { return *control_blocks_[rank]; }
  ControlBlock& own_control_block() const { return *control_blocks_[view_.rank]; }

  /// One per rank; several ranks may share one. A rank sleeps on its own.
  Doorbell* const* doorbells() const { return doorbells_; }
  Doorbell& own_doorbell() const { return *doorbells_[view_.rank]; }

  /// Makes sure that the first `bytes` of the scratch are backed by memory. Raises Error(kSystem)
  /// if none is left, instead of a bus error later. Cheap when called again.
  virtual void reserve_scratch(size_t bytes) = 0;
  /// The same for `bytes` from byte `offset` of the scratch on. Not remembered: one system call
  /// each time.
  virtual void reserve_part(size_t offset, size_t bytes) = 0;
  /// True if those bytes of a peer's scratch can be read without a bus error, backed by the peer or
  /// not.
  virtual bool readable(int peer, size_t offset, size_t bytes) const = 0;

  /// The name by which peers find this rank's `bytes` at `data`; kNotShared if they have not mapped
  /// them.
  virtual uint64_t locate(const void* data, size_t bytes) const = 0;

  /// The memory that rank `peer` names `where`, or nullptr if it has no `bytes` there. The same
  /// answer on every rank.
  virtual char* reach(int peer, uint64_t where, size_t bytes) const = 0;

  /// Keeps these bytes of this rank from reuse, even if freed, until every peer has left the group
  /// or died: an operation failed while peers may still write to them.
  virtual void quarantine(uint64_t where, size_t bytes) = 0;

  /// True if the process of a peer has died: all its writes are visible afterwards. Any thread.
  virtual bool lost(int peer) const = 0;

  /// Returns a function that is true if every peer has left the group, or is dead: only then is it
  /// certain that none of them touches this rank's memory for the group. It may outlive this
  /// object.
  virtual std::function<bool()> peers_are_gone() const = 0;

  /// The ranks are a part of a larger group, of `size` ranks, in which they have the numbers
  /// `ranks`: messages speak of those. Set before the first operation.
  void is_part(std::vector<int> ranks, int size) {
    numbers_ = std::move(ranks);
    whole_size_ = size;
  }
  /// A rank's number in messages, and the number of ranks there.
  int number_of(int rank) const { return numbers_.empty() ? rank : numbers_[rank]; }
  int whole_size() const { return numbers_.empty() ? size() : whole_size_; }

  /// Name of a peer in messages: "rank 2 (pid 4711)".
  virtual std::string describe(int rank) const = 0;

  /// What a peer is doing now, as activity_in(); "" if nothing tells.
  virtual std::string activity(int /*rank*/) const { return ""; }

  /// True if the ranks outnumber the cores that they may use.
  virtual bool oversubscribed() const = 0;

  /// Wakes every sleeping peer, after a change that is not a published flag.
  void wake_peers() const {
    // The change must come before the reads of the sleepers in the single order (doorbell.h).
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer) ring_if_asleep(*doorbells_[peer]);
  }

 protected:
  PeerView view_;
  ControlBlock* control_blocks_[kMaxRanks] = {};
  Doorbell* doorbells_[kMaxRanks] = {};

 private:
  std::vector<int> numbers_;  // empty: the ranks themselves
  int whole_size_ = 0;
};

}  // namespace fastcomm
