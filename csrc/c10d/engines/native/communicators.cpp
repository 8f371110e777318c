#include "c10d/engines/native/communicators.h"

#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/life/groups.h"
#include "c10d/life/store_bootstrap.h"
#include "core/error.h"

namespace fastcomm {

Communicators::Communicators(CommunicatorPtr group, c10::intrusive_ptr<::c10d::Store> store,
                             Continuations::Ptr continuations)
    : ordinary_(std::move(group)), store_(std::move(store)), lanes_(std::move(continuations)) {}

Communicators::~Communicators() { leave(""); }

void Communicators::leave(const std::string& how) {
  ordinary_->leave(how);
  lanes_.leave(how);
}

void Communicators::abort(const std::string& why) {
  ordinary_->abort(why);
  for (const CommunicatorPtr& lane : lanes_.formed()) lane->abort(why);
}

CommunicatorPtr Communicators::lane_at(const Continuations::Position& position,
                                       Milliseconds timeout) {
  return lanes_.at(
      position, timeout, [&](const LaneName& name) { return form(name, timeout); },
      [&](const std::string& why) { ordinary_->abort(why); });
}

CommunicatorPtr Communicators::form(const LaneName& name, Milliseconds timeout) {
  std::optional<Deadline> stalled_since;
  const auto look_around = [&] {
    if (const auto error = ordinary_->failure()) std::rethrow_exception(error);
    if (const auto error = ordinary_->stalled("forming", stalled_since)) {
      std::rethrow_exception(error);
    }
  };
  const std::string prefix = "communicator/" + name.prefix();
  StoreBootstrap bootstrap(c10::make_intrusive<::c10d::PrefixStore>(prefix, store_), look_around);
  bootstrap.label = ordinary_->label();
  try {
    look_around();
    const Formed formed =
        form_group(bootstrap, ordinary_->rank(), ordinary_->size(), deadline_after(timeout));
    const CommunicatorPtr& lane = formed.group;
    if (lane == nullptr) throw Error(ErrorCode::kSystem, formed.traits.why_not_native);
    lane->set_label(ordinary_->label() + name.label());
    Communicator::share_fate(ordinary_, lane);
    return lane;
  } catch (const Error& error) {
    if (ordinary_->failure() != nullptr) throw;
    // A store that fails may mean that a rank died: then that is reported.
    std::rethrow_exception(ordinary_->failed("forming", error.code(), why_no_lane(error.what())));
  }
}

}  // namespace fastcomm
