// Lanes: what carries out the calls that continuations issue.
//
// Continuations (continuations.h) issue calls in an order of their own, which the threads of a rank
// interleave with that of the users' calls at random: two ranks could sum each other's buckets. So
// they take another lane, formed when it is first needed, by all ranks at the same point of that
// order.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c10d/works/continuations.h"
#include "core/error.h"

namespace fastcomm {

/// The name of a lane on all ranks.
struct LaneName {
  bool own;   // for continuations of this group; else for those of other groups
  int depth;  // theirs

  bool operator<(const LaneName& other) const {
    return std::pair(own, depth) < std::pair(other.own, other.depth);
  }
  /// For calls of a group with these continuations, issued at `position`.
  static LaneName of(const Continuations::Position& position,
                     const Continuations::Ptr& continuations) {
    const bool is_own =
        !position.group.owner_before(continuations) && !continuations.owner_before(position.group);
    return {is_own, position.depth};
  }
  /// A number for it; 0 is of what the program issues.
  uint8_t number() const { return static_cast<uint8_t>(depth == 0 ? 0 : 2 * depth - own); }
  /// Of its keys in a store: "own/1/".
  std::string prefix() const { return concat(own ? "own/" : "other/", depth, "/"); }
  /// Of its warnings, after those of the group: "in continuations: ".
  std::string label() const {
    return concat(own ? "in continuations" : "in other groups' continuations",
                  depth > 1 ? concat(", depth ", depth) : "", ": ");
  }
};

/// The error's text if a lane could not be formed.
inline std::string why_no_lane(const std::string& cause) {
  return "what a continuation of a future issues takes a way of its own, which could not be "
         "formed: " +
         cause;
}

/// The lanes of one group and rank, but for that of users' calls. Each has leave(how), as
/// Communicator::leave(). Thread-safe.
template <class Lane>
class Lanes {
 public:
  using Ptr = std::shared_ptr<Lane>;

  /// `continuations` are the group's own.
  explicit Lanes(Continuations::Ptr continuations) : continuations_(std::move(continuations)) {}

  /// The lane of calls at `position`, from `form(name)` if it is new. Raises what that raises.
  /// Lets another group's continuations use a lane once its last user has ended; else raises, after
  /// `give_up(why)`, which must end the group.
  template <class Form, class GiveUp>
  Ptr at(const Continuations::Position& position, Milliseconds timeout, const Form& form,
         const GiveUp& give_up) {
    const LaneName name = LaneName::of(position, continuations_);
    for (;;) {
      std::weak_ptr<Continuations> user;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        const Entry& entry =
            entries_.try_emplace(name, Entry{nullptr, position.group}).first->second;
        user = entry.user;
        if (same(user, position.group)) {
          if (entry.lane != nullptr) return entry.lane;
          break;
        }
      }
      hand_over(name, user.lock(), position, timeout, give_up);
    }
    // Without the lock: another thread may be forming another lane, in another order on another
    // rank.
    Ptr lane = form(name);
    std::lock_guard<std::mutex> lock(mutex_);
    if (left_) lane->leave("");
    return entries_.at(name).lane = std::move(lane);
  }

  std::vector<Ptr> formed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Ptr> lanes;
    for (const auto& [name, entry] : entries_) {
      if (entry.lane != nullptr) lanes.push_back(entry.lane);
    }
    return lanes;
  }

  /// From here on every lane is left as soon as it is formed.
  void leave(const std::string& how) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      left_ = true;
    }
    for (const Ptr& each : formed()) each->leave(how);
  }

 private:
  struct Entry {
    Ptr lane;                           // nullptr while it is being formed
    std::weak_ptr<Continuations> user;  // the continuations that use it
  };

  static bool same(const std::weak_ptr<Continuations>& a, const std::weak_ptr<Continuations>& b) {
    return !a.owner_before(b) && !b.owner_before(a);
  }

  template <class GiveUp>
  void hand_over(const LaneName& name, const Continuations::Ptr& user,
                 const Continuations::Position& position, Milliseconds timeout,
                 const GiveUp& give_up) {
    // A group that was destroyed has an end: on every rank all of its operations come first.
    if (user != nullptr && !user->drained(deadline_after(timeout))) {
      // Another rank may have let the others in, and sum operations that do not belong together.
      const std::string why =
          "continuations of futures of two other process groups issue operations of this one, in "
          "an order that ranks cannot agree on: give each of them a process group of its own for "
          "that";
      give_up(why);
      throw Error(ErrorCode::kInvalidArgument, why);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.at(name).user = position.group;
  }

  const Continuations::Ptr continuations_;
  mutable std::mutex mutex_;
  std::map<LaneName, Entry> entries_;
  bool left_ = false;
};

}  // namespace fastcomm
