#include "c10d/engines/native/lanes.h"

#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "c10d/life/groups.h"
#include "c10d/life/store_bootstrap.h"
#include "core/error.h"

namespace fastcomm {
namespace {

bool same(const std::weak_ptr<Continuations>& a, const std::weak_ptr<Continuations>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

Lanes::Lanes(Lane group, c10::intrusive_ptr<::c10d::Store> store, Continuations::Ptr continuations)
    : ordinary_(std::move(group)),
      store_(std::move(store)),
      continuations_(std::move(continuations)) {}

Lanes::~Lanes() { leave(""); }

std::vector<Lanes::Lane> Lanes::formed() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Lane> lanes{ordinary_};
  for (auto& [key, entry] : others_) {
    if (entry.lane != nullptr) lanes.push_back(entry.lane);
  }
  return lanes;
}

void Lanes::leave(const std::string& how) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = true;
  }
  for (const Lane& lane : formed()) lane->leave(how);
}

void Lanes::abort(const std::string& why) {
  for (const Lane& lane : formed()) lane->abort(why);
}

Lanes::Lane Lanes::lane_at(const Continuations::Place& place, Milliseconds timeout) {
  const Key key{same(place.group, continuations_), place.depth};
  bool others = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = others_.try_emplace(key, Entry{nullptr, place.group}).first->second;
    others = !same(entry.user, place.group);
    if (!others && entry.lane != nullptr) return entry.lane;
  }
  if (others) {
    hand_over(key, place, timeout);
    return lane_at(place, timeout);
  }
  // Without the lock: another thread may be forming another lane, in another order on another rank.
  Lane lane = form(key, timeout);
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_) lane->leave("");
  return others_.at(key).lane = std::move(lane);
}

void Lanes::hand_over(const Key& key, const Continuations::Place& place, Milliseconds timeout) {
  Continuations::Ptr user;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    user = others_.at(key).user.lock();
  }
  // A group that was destroyed has an end: on every rank all of its operations come first.
  if (user != nullptr && !user->drained(deadline_after(timeout))) {
    // Another rank may have let the others in, and sum operations that do not belong together.
    const std::string why =
        "continuations of futures of two other process groups issue operations of this one, in an "
        "order that ranks cannot agree on: give each of them a process group of its own for that";
    ordinary_->abort(why);
    throw Error(ErrorCode::kInvalidArgument, why);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  others_.at(key).user = place.group;
}

Lanes::Lane Lanes::form(const Key& key, Milliseconds timeout) {
  std::optional<Deadline> stalled_since;
  const auto look_around = [&] {
    if (const auto error = ordinary_->failure()) std::rethrow_exception(error);
    if (const auto error = ordinary_->stalled("forming", stalled_since)) {
      std::rethrow_exception(error);
    }
  };
  const std::string prefix = concat("lane/", key.first ? "own/" : "other/", key.second, "/");
  StoreBootstrap bootstrap(c10::make_intrusive<::c10d::PrefixStore>(prefix, store_), look_around);
  bootstrap.label = ordinary_->label();
  try {
    look_around();
    const auto [lane, traits] =
        form_group(bootstrap, ordinary_->rank(), ordinary_->size(), deadline_after(timeout));
    if (lane == nullptr) throw Error(ErrorCode::kSystem, traits.why_not_native);
    lane->set_label(ordinary_->label());
    Communicator::share_fate(ordinary_, lane);
    return lane;
  } catch (const Error& error) {
    if (ordinary_->failure() != nullptr) throw;
    // A store that fails may mean that a rank died: then that is reported.
    std::rethrow_exception(ordinary_->failed(
        "forming", error.code(),
        concat("what a continuation of a future issues takes a way of its own, which could not be "
               "formed: ",
               error.what())));
  }
}

}  // namespace fastcomm
