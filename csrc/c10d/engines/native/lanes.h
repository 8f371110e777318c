// Lanes: the communicators of one group and rank.
//
// A group has one for its users' calls, in the same order on every rank. Calls issued by
// continuations (continuations.h) have an order of their own, which the threads of a rank
// interleave with the first at random: two ranks could sum each other's buckets. So they take
// another lane, formed when it is first needed, by all ranks at the same point of that order. Lanes
// share their fate: they fail together.
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

/// Thread-safe.
class Lanes {
 public:
  using Lane = std::shared_ptr<Communicator>;

  /// `group` is the lane of users' calls; `continuations` are the group's own. Others are formed
  /// over the store, in which no other thread waits.
  Lanes(Lane group, c10::intrusive_ptr<::c10d::Store> store, Continuations::Ptr continuations);
  /// Leaves every lane.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  const Lane& ordinary() const { return ordinary_; }
  /// The lane of the calling thread's calls. Raises the reason if it cannot be formed, which also
  /// gives up the group.
  Lane here(Milliseconds timeout) {
    const Continuations::Place place = Continuations::here();
    return place.depth == 0 || ordinary_->size() == 1 ? ordinary_ : lane_at(place, timeout);
  }

  /// `how` as in Communicator::leave(). From here on every lane is left as soon as it is formed.
  void leave(const std::string& how);
  void abort(const std::string& why);

 private:
  /// The name of a lane on all ranks: true for continuations of this group, false for others'; and
  /// their depth.
  using Key = std::pair<bool, int>;
  struct Entry {
    Lane lane;                          // nullptr while it is being formed
    std::weak_ptr<Continuations> user;  // the continuations that use it
  };

  Lane lane_at(const Continuations::Place& place, Milliseconds timeout);
  /// Lets another group's continuations use a lane once its last user has ended; else gives up this
  /// group.
  void hand_over(const Key& key, const Continuations::Place& place, Milliseconds timeout);
  Lane form(const Key& key, Milliseconds timeout);
  std::vector<Lane> formed();

  Lane ordinary_;
  c10::intrusive_ptr<::c10d::Store> store_;
  Continuations::Ptr continuations_;
  std::mutex mutex_;
  std::map<Key, Entry> others_;
  bool left_ = false;
};

}  // namespace fastcomm
