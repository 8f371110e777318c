// The engine of ranks on several hosts: inside each host shared memory, between them what torch
// ships.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "c10d/engines/delegate/delegate_engine.h"
#include "c10d/engines/engine.h"
#include "c10d/engines/hosts/host_exchange.h"
#include "c10d/engines/hosts/host_failures.h"
#include "c10d/engines/hosts/host_peers.h"
#include "c10d/life/watch.h"
#include "c10d/requests/prepared.h"

namespace fastcomm {

/// Stands before the engine that serves the group as a whole. Their calls are counted together, and
/// run beside each other; only a barrier waits for those of both. Their failures are one. Takes the
/// operations whose rows say how they are composed (HostWay), of tensors on a device through the
/// host's memory. Calls have one order on all ranks; messages have none, so those of continuations
/// are among them.
///
/// Progress: one thread for each group runs the calls one after the other; callers wait for it. So
/// the steps inside a host have one order on all of its ranks, too.
class HostsEngine final : public Engine {
 public:
  /// `inside` are the ranks of this host; `whole` lives longer.
  HostsEngine(std::shared_ptr<Communicator> inside, HostLayout layout,
              const HostThresholds& thresholds, DelegateEngine& whole, GroupContext context);
  ~HostsEngine() override;

  std::string name() const override { return "shared memory and " + whole_.name(); }
  bool is_native() const override { return true; }
  bool takes(const Request& request) const override;
  bool takes(const Query& query) const override;
  Selection explain(const Query& query) const override;
  const HostLayout& layout() const { return between_->layout(); }
  const HostThresholds& thresholds() const { return between_->thresholds(); }
  WorkPtr submit(const Request& request) override;
  /// Its calls are among those of the engine for the whole.
  uint64_t submitted() const override { return 0; }
  uint64_t next_number() const override { return whole_.submitted(); }

  std::exception_ptr failure() const override { return whole_.failure(); }
  bool is_in_trouble() const override { return whole_.is_in_trouble(); }
  void fail(const std::exception_ptr& why) override { whole_.fail(why); }
  void abort() override { whole_.abort(); }
  void leave(const std::string& how) override;
  void abandon() override;

 private:
  struct Issued;
  class IssuedWork;

  /// True if nothing more can be done: the group is destroyed, or the interpreter ends.
  bool is_ending() const { return is_leaving() || watch_->has_stopped(); }
  bool is_leaving() const { return failures_->is_leaving(); }
  /// Runs what has been issued. For the watch; raises nothing.
  bool run_all();
  void run(const std::shared_ptr<Issued>& issued);
  /// Returns when the group's earlier calls are done, also those of the engine for the whole: a
  /// barrier comes after them.
  void finish_earlier(const Issued& issued);
  /// The error of a call that ended with `error`, after the group has been given up.
  std::exception_ptr failed(const Issued& issued, const std::exception_ptr& error);
  /// Raises what ends a wait.
  void look(const Issued& issued);

  DelegateEngine& whole_;
  const std::shared_ptr<Delegate> delegate_;
  std::shared_ptr<Communicator> inside_;
  const std::shared_ptr<HostFailures> failures_;
  HostPeers peers_;
  /// The call that failed first: messages under way may use its tensors.
  std::shared_ptr<Issued> failed_;
  std::unique_ptr<HostExchange> between_;  // ends before that
  std::mutex mutex_;                       // guards the members up to how_
  std::deque<std::shared_ptr<Issued>> queue_;
  const Issued* running_ = nullptr;
  uint64_t issued_ = 0, ended_ = 0;
  std::string how_;               // this rank leaves; does not change once it does
  std::unique_ptr<Watch> watch_;  // last: its thread uses what is above
};

}  // namespace fastcomm
