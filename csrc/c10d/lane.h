// A lane: a communicator and a stock engine over all ranks of a group.
//
// A group has one for what its users issue, in the same order on every rank. What continuations issue
// (continuations.h) has an order of its own, which the threads of a rank mix with the first as chance
// will: two ranks could sum each other's buckets. So it takes another lane, formed when it is first
// needed, by all ranks at the same point of that order. Lanes share their fate: they fail together.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "c10d/continuations.h"
#include "coll/communicator.h"

namespace fastcomm {

using StockPtr = c10::intrusive_ptr<::c10d::Backend>;

/// Thread-safe.
class Lane {
 public:
  using MakeStock = std::function<StockPtr()>;

  /// `group` is nullptr where the group is Gloo's. `stock` may be nullptr, else there is nothing to make.
  Lane(std::shared_ptr<Communicator> group, StockPtr stock, MakeStock make_stock);
  /// Leaves, without waiting for what the engine may still be at.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::shared_ptr<Communicator>& group() const { return group_; }
  /// The stock engine. Made at the first call, which is collective.
  StockPtr stock(Milliseconds timeout);

  /// `how` as in Communicator::leave().
  void leave(const std::string& how);
  void abort();
  void set_timeout(Milliseconds timeout);

 private:
  StockPtr known_stock() const;

  std::shared_ptr<Communicator> group_;
  MakeStock make_stock_;
  mutable std::mutex mutex_;
  StockPtr stock_;
};

/// The lanes of one group and rank. Thread-safe.
class Lanes {
 public:
  /// Makes a stock engine over the group's ranks; the name is one that only the ranks of this group
  /// use, each for one engine. Collective.
  using MakeNamedStock = std::function<StockPtr(const std::string& name)>;

  /// `group` and its engine are the lane of what users issue; `continuations` are the group's own. The
  /// store, which no other thread waits in, forms others.
  Lanes(std::shared_ptr<Communicator> group, StockPtr stock,
        c10::intrusive_ptr<::c10d::Store> store, MakeNamedStock make_stock,
        Continuations::Ptr continuations);

  Lane& ordinary() { return ordinary_; }
  /// The lane of what the calling thread issues. Raises what keeps it from being formed, which also
  /// gives up the group.
  Lane& here(Milliseconds timeout) {
    const Continuations::Place place = Continuations::here();
    return place.depth == 0 || !has_others_ ? ordinary_ : lane_at(place, timeout);
  }

  template <class Function>
  void for_each(const Function& function) {
    std::lock_guard<std::mutex> lock(mutex_);
    function(ordinary_);
    for (auto& [key, entry] : others_) {
      if (entry.lane != nullptr) function(*entry.lane);
    }
  }
  /// Of all stock engines, those to be made included.
  void set_timeout(Milliseconds timeout);
  /// `how` as above. From here on every lane is left as soon as it is formed.
  void leave(const std::string& how);

 private:
  /// Of continuations of this group or of others, how deep: what all ranks call a lane by.
  using Key = std::pair<bool, int>;
  struct Entry {
    std::unique_ptr<Lane> lane;         // nullptr while it is being formed
    std::weak_ptr<Continuations> user;  // whose continuations use it
  };

  Lane& lane_at(const Continuations::Place& place, Milliseconds timeout);
  /// Lets those of another group use a lane once its last user has ended; else gives up this group.
  void hand_over(const Key& key, const Continuations::Place& place, Milliseconds timeout);
  std::unique_ptr<Lane> form(const Key& key, Milliseconds timeout);
  std::shared_ptr<Communicator> form_communicator(const std::string& name, Milliseconds timeout);

  Lane ordinary_;
  c10::intrusive_ptr<::c10d::Store> store_;
  MakeNamedStock make_stock_;
  Continuations::Ptr continuations_;
  bool has_others_;  // a group that can have other lanes, and needs them
  std::mutex mutex_;
  std::map<Key, Entry> others_;
  std::optional<Milliseconds> timeout_;  // set by users, for engines still to be made
  bool left_ = false;
};

}  // namespace fastcomm
