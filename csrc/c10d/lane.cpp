#include "c10d/lane.h"

#include <optional>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/groups.h"
#include "c10d/store_bootstrap.h"
#include "c10d/work.h"
#include "core/error.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

bool same(const std::weak_ptr<Continuations>& a, const std::weak_ptr<Continuations>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

Lane::Lane(std::shared_ptr<Communicator> group, StockPtr stock, MakeStock make_stock)
    : group_(std::move(group)), make_stock_(std::move(make_stock)), stock_(std::move(stock)) {}

Lane::~Lane() {
  if (group_ != nullptr) group_->leave();
  if (stock_ == nullptr) return;
  if (forked_from_endpoint()) {
    stock_.release();  // a child of fork() does not have the threads to join
  } else if (group_ != nullptr && group_->engine_at_work()) {
    // Gloo's destructor waits for what it works on, as long as that takes: for a stopped peer, say.
    auto* stock = stock_.release();
    try {
      std::thread([stock] { StockPtr::reclaim(stock); }).detach();
    } catch (const std::system_error&) {
      // No thread to be had: rather a leak than a destructor that waits, or throws.
    }
  }
}

StockPtr Lane::known_stock() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stock_;
}

StockPtr Lane::stock(Milliseconds timeout) {
  if (auto stock = known_stock()) return stock;
  // One thread uses a lane whose engine is still to be made: no other makes one meanwhile. The ranks
  // meet first: whoever is late, dead or gone is found as in every operation.
  Call meeting;
  meeting.kind = OpKind::kBarrier;
  const auto met = group_->run(meeting, timeout, g_interrupt_check);
  if (met->error() != nullptr) std::rethrow_exception(met->error());
  StockPtr made;
  try {
    made = make_stock_();
  } catch (const std::exception& error) {  // the peers must not wait for this rank
    group_->abort(
        concat("Gloo could not be started for what a continuation issues: ", error.what()));
    throw;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  stock_ = made;
  return made;
}

void Lane::leave(const std::string& how) {
  if (group_ != nullptr) group_->leave(how);
  if (const auto stock = known_stock()) stock->shutdown();
}

void Lane::abort() {
  if (group_ != nullptr) group_->abort(concat("rank ", group_->rank(), " called abort()"));
  if (const auto stock = known_stock()) stock->abort();
}

void Lane::set_timeout(Milliseconds timeout) {
  if (const auto stock = known_stock()) stock->setTimeout(timeout);
}

Lanes::Lanes(std::shared_ptr<Communicator> group, StockPtr stock,
             c10::intrusive_ptr<::c10d::Store> store, MakeNamedStock make_stock,
             Continuations::Ptr continuations)
    : ordinary_(std::move(group), std::move(stock), nullptr),
      store_(std::move(store)),
      make_stock_(std::move(make_stock)),
      continuations_(std::move(continuations)),
      has_others_(ordinary_.group() != nullptr && ordinary_.group()->size() > 1) {}

void Lanes::leave(const std::string& how) {
  for_each([&how](Lane& lane) { lane.leave(how); });
  std::lock_guard<std::mutex> lock(mutex_);
  left_ = true;
  for (auto& [key, entry] : others_) {  // one that came in between
    if (entry.lane != nullptr) entry.lane->leave(how);
  }
}

void Lanes::set_timeout(Milliseconds timeout) {
  for_each([timeout](Lane& lane) { lane.set_timeout(timeout); });
  std::lock_guard<std::mutex> lock(mutex_);
  timeout_ = timeout;
}

Lane& Lanes::lane_at(const Continuations::Place& place, Milliseconds timeout) {
  const Key key{same(place.group, continuations_), place.depth};
  bool others = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = others_.try_emplace(key, Entry{nullptr, place.group}).first->second;
    others = !same(entry.user, place.group);
    if (!others && entry.lane != nullptr) return *entry.lane;
  }
  if (others) {
    hand_over(key, place, timeout);
    return lane_at(place, timeout);
  }
  // Without the lock: another thread may be forming another lane, in another order on another rank.
  auto lane = form(key, timeout);
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_) lane->leave("");
  Entry& entry = others_.at(key);
  entry.lane = std::move(lane);
  return *entry.lane;
}

void Lanes::hand_over(const Key& key, const Continuations::Place& place, Milliseconds timeout) {
  Continuations::Ptr user;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    user = others_.at(key).user.lock();
  }
  // A group that was destroyed has an end: on every rank all of its operations come first.
  if (user != nullptr && !user->drained(deadline_after(timeout))) {
    // Another rank may have let the others in, and sum what does not belong together.
    const std::string why =
        "continuations of futures of two other process groups issue operations of this one, in an "
        "order that ranks cannot agree on: give each of them a process group of its own for that";
    ordinary_.group()->abort(why);
    throw Error(ErrorCode::kInvalidArgument, why);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  others_.at(key).user = place.group;
}

std::unique_ptr<Lane> Lanes::form(const Key& key, Milliseconds timeout) {
  const std::string name = concat("lane/", key.first ? "own/" : "other/", key.second);
  const auto& group = ordinary_.group();
  try {
    auto formed = form_communicator(name, timeout);
    Communicator::share_fate(group, formed);
    return std::make_unique<Lane>(std::move(formed), nullptr, [this, name] {
      StockPtr made = make_stock_(name);
      std::lock_guard<std::mutex> lock(mutex_);
      if (timeout_) made->setTimeout(*timeout_);
      return made;
    });
  } catch (const Error& error) {
    if (group->failure() != nullptr) throw;
    // A store that fails may be a rank that died: that is told instead.
    std::rethrow_exception(group->exchange_failed(
        "forming", -1, error.code(),
        concat("what a continuation of a future issues takes a way of its own, which could not be "
               "formed: ",
               error.what())));
  }
}

std::shared_ptr<Communicator> Lanes::form_communicator(const std::string& name,
                                                       Milliseconds timeout) {
  const auto& group = ordinary_.group();
  std::optional<Deadline> stalled_since;
  const auto look_around = [&] {
    if (const auto error = group->failure()) std::rethrow_exception(error);
    if (const auto error = group->exchange_stalled("forming", stalled_since, true)) {
      std::rethrow_exception(error);
    }
  };
  StoreBootstrap bootstrap(c10::make_intrusive<::c10d::PrefixStore>(concat(name, "/"), store_),
                           look_around);
  look_around();
  Formed formed = form_group(bootstrap, group->rank(), group->size(), deadline_after(timeout));
  if (formed.group == nullptr) throw Error(ErrorCode::kSystem, formed.traits.why_stock);
  return std::move(formed.group);
}

}  // namespace fastcomm
