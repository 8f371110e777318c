#include "c10d/engines/native/communicators.h"

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

/// "[rank0]: fastcomm: group '0' of all 2 ranks: in continuations: ".
std::string label_of(const Communicators::Key& key, const std::string& group) {
  const std::string whose = key.first ? "in continuations" : "in other groups' continuations";
  return concat(group, whose, key.second > 1 ? concat(", depth ", key.second) : "", ": ");
}

}  // namespace

Communicators::Communicators(CommunicatorPtr group, c10::intrusive_ptr<::c10d::Store> store,
                             Continuations::Ptr continuations)
    : ordinary_(std::move(group)),
      store_(std::move(store)),
      continuations_(std::move(continuations)) {}

Communicators::~Communicators() { leave(""); }

std::vector<CommunicatorPtr> Communicators::formed() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CommunicatorPtr> communicators{ordinary_};
  for (auto& [key, entry] : others_) {
    if (entry.communicator != nullptr) communicators.push_back(entry.communicator);
  }
  return communicators;
}

void Communicators::leave(const std::string& how) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = true;
  }
  for (const CommunicatorPtr& one : formed()) one->leave(how);
}

void Communicators::abort(const std::string& why) {
  for (const CommunicatorPtr& one : formed()) one->abort(why);
}

CommunicatorPtr Communicators::communicator_at(const Continuations::Position& position,
                                               Milliseconds timeout) {
  const Key key{same(position.group, continuations_), position.depth};
  bool others = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = others_.try_emplace(key, Entry{nullptr, position.group}).first->second;
    others = !same(entry.user, position.group);
    if (!others && entry.communicator != nullptr) return entry.communicator;
  }
  if (others) {
    hand_over(key, position, timeout);
    return communicator_at(position, timeout);
  }
  // Without the lock: another thread may be forming another communicator, in another order on
  // another rank.
  CommunicatorPtr communicator = form(key, timeout);
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_) communicator->leave("");
  return others_.at(key).communicator = std::move(communicator);
}

void Communicators::hand_over(const Key& key, const Continuations::Position& position,
                              Milliseconds timeout) {
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
  others_.at(key).user = position.group;
}

CommunicatorPtr Communicators::form(const Key& key, Milliseconds timeout) {
  std::optional<Deadline> stalled_since;
  const auto look_around = [&] {
    if (const auto error = ordinary_->failure()) std::rethrow_exception(error);
    if (const auto error = ordinary_->stalled("forming", stalled_since)) {
      std::rethrow_exception(error);
    }
  };
  const std::string prefix =
      concat("communicator/", key.first ? "own/" : "other/", key.second, "/");
  StoreBootstrap bootstrap(c10::make_intrusive<::c10d::PrefixStore>(prefix, store_), look_around);
  bootstrap.label = ordinary_->label();
  try {
    look_around();
    const Formed formed =
        form_group(bootstrap, ordinary_->rank(), ordinary_->size(), deadline_after(timeout));
    const CommunicatorPtr& lane = formed.group;
    if (lane == nullptr) throw Error(ErrorCode::kSystem, formed.traits.why_not_native);
    lane->set_label(label_of(key, ordinary_->label()));
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
