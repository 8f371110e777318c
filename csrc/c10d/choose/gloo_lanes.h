// The lanes of a group whose ranks do not all share memory: its engines once more for what
// continuations issue (works/lanes.h), over a Gloo group of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/engines/delegate/delegate_engine.h"
#include "c10d/engines/hosts/hosts_engine.h"
#include "c10d/life/groups.h"
#include "c10d/works/lanes.h"

namespace fastcomm {

/// Makes a Gloo group; collective. `address` is that of the network interface to use, or "". Set
/// once, from bindings/module.cpp. May raise.
using GlooMaker = std::function<DelegateEngine::BackendPtr(
    const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size, Milliseconds timeout,
    const std::string& address)>;
extern GlooMaker g_make_gloo;

/// The engines of one lane. Thread-safe.
class GlooLane {
 public:
  /// `group` is that of users' calls: both fail together. `host` has no communicator if nothing is
  /// composed.
  GlooLane(DelegateEngine::BackendPtr gloo, HostRanks host, const GroupContext& context,
           std::string label, const std::shared_ptr<Delegate>& group);
  ~GlooLane();
  GlooLane(const GlooLane&) = delete;
  GlooLane& operator=(const GlooLane&) = delete;

  /// The engine that takes a collective; nullptr if none does.
  Engine* choose(const Request& request);
  DelegateEngine& whole() { return *whole_; }
  /// All, in the order in which they are asked.
  std::vector<Engine*> engines() const;
  void leave(const std::string& how);

 private:
  std::unique_ptr<DelegateEngine> whole_;
  std::unique_ptr<HostsEngine> hosts_;  // or nullptr; ends first
};

/// Thread-safe.
class GlooLanes {
 public:
  /// `whole` and `hosts`, which may be nullptr, are the engines of users' calls, and live longer.
  /// No other thread waits in the store.
  GlooLanes(DelegateEngine& whole, const HostsEngine* hosts, GroupContext context,
            std::string address, c10::intrusive_ptr<::c10d::Store> store);
  ~GlooLanes();
  GlooLanes(const GlooLanes&) = delete;
  GlooLanes& operator=(const GlooLanes&) = delete;

  /// The lane of calls at `position`, in a continuation. Raises the reason if it cannot be formed;
  /// then the group is given up.
  GlooLane& at(const Continuations::Position& position, Milliseconds timeout);
  /// Those of all lanes so far.
  std::vector<Engine*> engines() const;

 private:
  std::shared_ptr<GlooLane> form(const LaneName& name, Milliseconds timeout);
  std::shared_ptr<GlooLane> form(const LaneName& name, Deadline deadline,
                                 const std::function<void()>& look_around);

  DelegateEngine& whole_;
  const HostsEngine* const hosts_;
  const GroupContext context_;
  const std::string address_;
  const c10::intrusive_ptr<::c10d::Store> store_;
  Lanes<GlooLane> lanes_;
};

}  // namespace fastcomm
