#include "c10d/choose/gloo_lanes.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "c10d/life/aside.h"
#include "c10d/life/exception.h"
#include "c10d/life/store_bootstrap.h"
#include "c10d/life/watched_store.h"
#include "transport/fork.h"

namespace fastcomm {

GlooMaker g_make_gloo;

GlooLane::GlooLane(DelegateEngine::BackendPtr gloo, HostRanks host, const GroupContext& context,
                   std::string label, const std::shared_ptr<Delegate>& group)
    : whole_(std::make_unique<DelegateEngine>(std::move(gloo), gloo_delegate(), context,
                                              std::move(label), Beside{nullptr, group})) {
  if (host.group == nullptr) return;
  hosts_ = std::make_unique<HostsEngine>(std::move(host.group), std::move(host.layout),
                                         host.thresholds, *whole_, context);
}

GlooLane::~GlooLane() {
  if (forked_from_endpoint()) return;  // abandoned
  const bool failed = whole_->is_in_trouble();
  auto gloo = whole_->inner();
  hosts_.reset();
  whole_.reset();
  if (failed) let_go_aside(std::move(gloo));
}

Engine* GlooLane::choose(const Request& request) {
  for (Engine* const engine : engines()) {
    if (engine->takes(request)) return engine;
  }
  return nullptr;
}

std::vector<Engine*> GlooLane::engines() const {
  std::vector<Engine*> found;
  if (hosts_ != nullptr) found.push_back(hosts_.get());
  found.push_back(whole_.get());
  return found;
}

void GlooLane::leave(const std::string& how) {
  for (Engine* const each : engines()) each->leave(how);
}

GlooLanes::GlooLanes(DelegateEngine& whole, const HostsEngine* hosts, GroupContext context,
                     std::string address, c10::intrusive_ptr<::c10d::Store> store)
    : whole_(whole),
      hosts_(hosts),
      context_(std::move(context)),
      address_(std::move(address)),
      store_(std::move(store)),
      lanes_(context_.continuations) {
  whole_.delegate()->also_end(this, [this](const std::exception_ptr& failure) {
    for (const auto& lane : lanes_.formed()) lane->whole().fail(failure);
  });
}

GlooLanes::~GlooLanes() {
  if (!forked_from_endpoint()) whole_.delegate()->also_end(this, nullptr);
}

GlooLane& GlooLanes::at(const Continuations::Position& position, Milliseconds timeout) {
  const auto& group = whole_.delegate();
  const auto lane = lanes_.at(
      position, timeout, [&](const LaneName& name) { return form(name, timeout); },
      [&](const std::string& why) {
        group->give_up({"none", Request::kNoRank, whole_.submitted()}, ErrorCode::kInvalidArgument,
                       why);
      });
  return *lane;  // until this object ends
}

std::vector<Engine*> GlooLanes::engines() const {
  std::vector<Engine*> all;
  for (const auto& lane : lanes_.formed()) {
    for (Engine* const each : lane->engines()) all.push_back(each);
  }
  return all;
}

std::shared_ptr<GlooLane> GlooLanes::form(const LaneName& name, Milliseconds timeout) {
  constexpr Milliseconds kPatience{2000};  // with a rank that left, and may have done its part
  const auto& group = whole_.delegate();
  const Delegate::Subject subject{"forming", Request::kNoRank, whole_.submitted()};
  const Deadline patience = deadline_after(kPatience);
  const Deadline end = deadline_after(timeout);
  const auto look_around = [&] {
    if (const auto failure = group->failure()) std::rethrow_exception(failure);
    if (Clock::now() < patience) return;
    if (const auto left = group->without_one_that_left(subject)) std::rethrow_exception(left);
  };
  try {
    auto lane = form(name, end, look_around);
    if (group->failure() != nullptr) lane->leave("");  // it was not among those that have ended
    return lane;
  } catch (const std::exception&) {
    if (const auto failure = group->failure()) std::rethrow_exception(failure);
    // Gloo and Python do not keep an error's type.
    const auto error = std::current_exception();
    const ErrorCode code = Clock::now() > end ? ErrorCode::kTimeout : code_of(error);
    if (code != ErrorCode::kTimeout) {
      // A store that fails may mean that a rank died: then that is reported.
      if (const auto told = group->heard_soon()) std::rethrow_exception(told);
    }
    std::rethrow_exception(group->give_up(subject, code, why_no_lane(what_of(error))));
  }
}

std::shared_ptr<GlooLane> GlooLanes::form(const LaneName& name, Deadline deadline,
                                          const std::function<void()>& look_around) {
  look_around();
  const auto store = c10::make_intrusive<::c10d::PrefixStore>("lane/" + name.prefix(), store_);
  const std::string label = whole_.delegate()->label() + name.label();
  StoreBootstrap bootstrap(store, look_around);
  bootstrap.label = label;
  agree(bootstrap, context_.rank, context_.size, "", deadline);  // names those that do not come
  HostRanks host;
  if (hosts_ != nullptr) {
    host.layout = hosts_->layout();
    host.thresholds = hosts_->thresholds();
    host.group = form_host_again(bootstrap, host.layout, context_.size, deadline);
  }
  auto gloo = g_make_gloo(c10::make_intrusive<WatchedStore>("gloo/", store, deadline, look_around),
                          context_.rank, context_.size, context_.options->timeout, address_);
  return std::make_shared<GlooLane>(std::move(gloo), std::move(host), context_, label,
                                    whole_.delegate());
}

}  // namespace fastcomm
