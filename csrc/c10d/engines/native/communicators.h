// The communicators of one group and rank.
//
// A group has one for its users' calls, in the same order on every rank. Calls issued by
// continuations (continuations.h) have an order of their own, which the threads of a rank
// interleave with the first at random: two ranks could sum each other's buckets. So they take
// another communicator, formed when it is first needed, by all ranks at the same point of that
// order. The communicators of a group fail together.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "c10d/works/continuations.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

using CommunicatorPtr = std::shared_ptr<Communicator>;

/// Thread-safe.
class Communicators {
 public:
  /// The name of a communicator on all ranks: true for continuations of this group, false for
  /// others'; and their depth.
  using Key = std::pair<bool, int>;

  /// `group` is the communicator of users' calls; `continuations` are the group's own. Others are
  /// formed over the store, in which no other thread waits.
  Communicators(CommunicatorPtr group, c10::intrusive_ptr<::c10d::Store> store,
                Continuations::Ptr continuations);
  /// Leaves every communicator.
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  const CommunicatorPtr& ordinary() const { return ordinary_; }
  /// The communicator of the calling thread's calls. Raises the reason if it cannot be formed; then
  /// the group is given up.
  CommunicatorPtr here(Milliseconds timeout) {
    const Continuations::Position position = Continuations::here();
    return position.depth == 0 || ordinary_->size() == 1 ? ordinary_
                                                         : communicator_at(position, timeout);
  }

  /// `how` as in Communicator::leave(). From here on every communicator is left as soon as it is
  /// formed.
  void leave(const std::string& how);
  void abort(const std::string& why);

 private:
  struct Entry {
    CommunicatorPtr communicator;       // nullptr while it is being formed
    std::weak_ptr<Continuations> user;  // the continuations that use it
  };

  CommunicatorPtr communicator_at(const Continuations::Position& position, Milliseconds timeout);
  /// Lets another group's continuations use a communicator once its last user has ended; else gives
  /// up this group.
  void hand_over(const Key& key, const Continuations::Position& position, Milliseconds timeout);
  CommunicatorPtr form(const Key& key, Milliseconds timeout);
  std::vector<CommunicatorPtr> formed();

  CommunicatorPtr ordinary_;
  c10::intrusive_ptr<::c10d::Store> store_;
  Continuations::Ptr continuations_;
  std::mutex mutex_;
  std::map<Key, Entry> others_;
  bool left_ = false;
};

}  // namespace fastcomm
