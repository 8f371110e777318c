// An operation done by another backend, as c10d sees it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "c10d/engines/delegate/delegate.h"
#include "c10d/works/group_work.h"
#include "core/clock.h"
#include "core/wait_warning.h"
#include "transport/fork.h"

namespace fastcomm {

/// Thread-safe. Errors come out of wait(), of the future and of exception() in our own types. A
/// caller waiting for a work that blocks sees Ctrl-C: then the group is given up.
class DelegateWork final : public GroupWork {
 public:
  /// Description of the call.
  struct Call {
    std::shared_ptr<Delegate> delegate;
    Delegate::Subject subject;
    ::c10d::OpType type;
    Tensors outputs;                   // the result if the backend names none
    Milliseconds timeout;              // of a send or a receive: counts from wait()
    Continuations::Ptr continuations;  // the group's
  };

  static c10::intrusive_ptr<DelegateWork> start(Call call, WorkPtr inner);
  /// A call that failed before it began.
  static c10::intrusive_ptr<DelegateWork> failed(Call call, const std::exception_ptr& error);
  /// A call that blocks, on a thread of its own. Raises Error(kSystem) if there is none.
  static c10::intrusive_ptr<DelegateWork> aside(Call call, std::function<void()> body);

  DelegateWork(Call call, WorkPtr inner);

  /// Ends it, if it has not ended: the group has failed.
  void fail(const std::exception_ptr& error) { complete(error, {}); }

  /// Whoever sees it finds the future complete. For a send or a receive: a thread waits for it from
  /// the first look on, as from getFuture().
  bool isCompleted() override;
  /// Raises the operation's error; CollectiveTimeoutError if `timeout` passes first, which leaves
  /// the operation and the group unchanged. False if it was aborted.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  FuturePtr getFuture() override;
  Tensors result() override;
  int sourceRank() const override;
  uint64_t getSequencenumber() const override { return call_.subject.sequence; }

  /// Called when nobody holds it any more, while the delegate still has a weak reference: without
  /// this it would keep that for ever.
  void release_resources() override {
    if (!forked_from_endpoint()) call_.delegate->end(call_.subject);
  }

 private:
  /// True for Gloo's sends and receives, which make progress only while waited for.
  bool in_slices() const;
  bool on_device() const { return !call_.delegate->kind().blocks; }
  /// Lets the delegate know of it.
  void begin();
  void follow();
  /// As isCompleted(), without the thread.
  bool is_over();
  /// Starts the thread that waits for a send or a receive, once.
  void wait_aside();
  void run_aside(std::function<void()> body);
  void wait_for_end(Deadline deadline);
  /// Makes the caller's stream wait, after the host has waited up to the deadline, if there is one.
  void wait_on_device(Deadline deadline);
  void wait_in_slices(Deadline deadline);
  void look_around(Deadline deadline);
  /// Once; later calls are dropped. `error` is the backend's own, or ours.
  void complete(const std::exception_ptr& error, const c10::IValue& value);
  void ended(const std::exception_ptr& error, const c10::IValue& value = {});
  /// Once.
  void settle(const std::exception_ptr& error, const c10::IValue& value);

  const Call call_;
  const WorkPtr inner_;  // nullptr for one that failed before, or runs aside
  FuturePtr future_;
  WaitWarning warning_;                // of this operation, since it was issued
  std::atomic<bool> claimed_{false};   // by the thread that completes this work
  std::atomic<bool> followed_{false};  // a thread waits for a send or a receive
  std::atomic<bool> aborted_{false};
  std::atomic<bool> settled_{false};  // the future
  std::atomic<bool> settles_later_{
      false};  // with the backend's own: on a device, before the work is done
};

}  // namespace fastcomm
