// The engine of ranks that share memory: tensors in host memory, and those on a device through it.
//
// Each request becomes calls (c10d/requests/calls.h), which are run or started on the communicator.
// That chooses the algorithm for each (coll/select.h), by values that all ranks agree on.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "c10d/engines/engine.h"
#include "c10d/engines/native/communicators.h"
#include "c10d/engines/native/work.h"
#include "c10d/requests/calls.h"
#include "engines/cpu/communicator.h"

namespace fastcomm {

/// Progress: waiting callers drive; the progress thread of the process drives the rest (ADR 0010).
class NativeEngine final : public Engine {
 public:
  /// `group` is the group that was formed; `communicator_store` is for further communicators.
  NativeEngine(std::shared_ptr<Communicator> group, GroupContext context,
               c10::intrusive_ptr<::c10d::Store> communicator_store);

  const GroupTraits& traits() const { return group()->traits(); }
  /// The communicator of users' calls.
  const std::shared_ptr<Communicator>& group() const { return communicators_.ordinary(); }

  std::string name() const override { return "shared memory"; }
  bool is_native() const override { return true; }
  /// All but lists on devices, and lists with units larger than the slots.
  bool takes(const Request& request) const override;
  Selection explain(const Query& query) const override {
    return explain_selection(traits(), query);
  }
  WorkPtr submit(const Request& request) override;
  /// Carries out a call of a user, outside of continuations. Raises its error.
  void run(const ShortCall& call, const CallRecord& record, Milliseconds timeout);
  /// Its timeout names the missing ranks, on every rank.
  void monitored_barrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  uint64_t submitted() const override { return calls_; }
  uint64_t next_number() const override { return group()->sequence(); }

  std::exception_ptr failure() const override { return group()->failure(); }
  bool is_in_trouble() const override { return group()->is_in_trouble(); }
  void fail(const std::exception_ptr& why) override;
  /// Gives the group up here and on every peer. Idempotent.
  void abort() override;
  void leave(const std::string& how) override { communicators_.leave(how); }

  /// The messages of all ranks, `bytes` each, in the order of ranks. A call of the group like
  /// others, and compared by `signature`, which is `what_for` in messages. Raises its error.
  void gather_bytes(const void* own, void* all, size_t bytes, uint64_t signature,
                    std::string what_for);

 private:
  /// `is_last` of its request: its work stands for all.
  WorkPtr launch(const Request& request, Prepared& made, bool is_last);
  /// The same of a synchronous one.
  WorkPtr run(const Request& request, const Call& call, Held held, bool is_last);
  /// Costs allocations: not for a synchronous call that succeeds.
  NativeWork::About about(const Request& request, bool is_last) const;
  WorkPtr exchange(const Request& request);

  Communicators communicators_;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace fastcomm
