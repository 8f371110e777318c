// The communicators of one group and rank: one for its users' calls, in the same order on every
// rank, and others for what continuations issue (works/lanes.h). They fail together.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "c10d/works/lanes.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

using CommunicatorPtr = std::shared_ptr<Communicator>;

/// Thread-safe.
class Communicators {
 public:
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
    if (!Continuations::is_inside() || ordinary_->size() == 1) return ordinary_;
    const Continuations::Position position = Continuations::here();
    return position.depth == 0 ? ordinary_ : lane_at(position, timeout);
  }

  /// `how` as in Communicator::leave(). From here on every communicator is left as soon as it is
  /// formed.
  void leave(const std::string& how);
  void abort(const std::string& why);

 private:
  CommunicatorPtr lane_at(const Continuations::Position& position, Milliseconds timeout);
  CommunicatorPtr form(const LaneName& name, Milliseconds timeout);

  CommunicatorPtr ordinary_;
  c10::intrusive_ptr<::c10d::Store> store_;
  Lanes<Communicator> lanes_;
};

}  // namespace fastcomm
