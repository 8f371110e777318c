// The engine that runs on another of torch's backends.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "c10d/engines/delegate/delegate.h"
#include "c10d/engines/delegate/delegate_work.h"
#include "c10d/engines/delegate/device_watch.h"
#include "c10d/engines/engine.h"
#include "c10d/life/watch.h"

namespace fastcomm {

/// Progress: by that backend's own threads. Calls are not compared between ranks, and sums have
/// that backend's bits. Its errors become ours: any that is not about a call's arguments gives the
/// group up.
class DelegateEngine final : public Engine {
 public:
  using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

  DelegateEngine(BackendPtr inner, DelegateKind kind, GroupContext context, std::string label,
                 Beside beside = {}, std::shared_ptr<PeerLinks> links = nullptr);
  ~DelegateEngine() override;

  const BackendPtr& inner() const { return inner_; }
  const std::shared_ptr<Delegate>& delegate() const { return delegate_; }
  /// Every rank's `bytes` in `all`, in order of rank: one operation of the group. Raises its error.
  void gather_bytes(const void* mine, void* all, size_t bytes);
  std::string name() const override { return delegate_->kind().name; }
  bool is_on_devices() const override { return watch_ != nullptr; }
  bool tells_itself() const override { return name() == "NCCL"; }
  /// All operations of torch.
  bool takes(const Request& request) const override { return static_cast<bool>(request.forward); }
  Selection explain(const Query& query) const override;
  WorkPtr submit(const Request& request) override;
  /// The same, with a work that `make` makes instead of the backend: an operation of the group
  /// like others. It calls nothing but the delegate when it fails.
  using Maker = c10::function_ref<WorkPtr(const Delegate::Subject&)>;
  WorkPtr submit(const Request& request, Maker make);
  void monitored_barrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  bool begin_block() override;
  WorkPtr end_block() override;
  uint64_t submitted() const override { return sequence_; }

  std::exception_ptr failure() const override { return delegate_->failure(); }
  bool is_in_trouble() const override {
    return delegate_->failure() != nullptr && delegate_->has_failed();
  }
  void fail(const std::exception_ptr& why) override;
  void abort() override;
  void leave(const std::string& how) override;
  void abandon() override;
  void set_timeout(Milliseconds timeout) override { inner_->setTimeout(countable(timeout)); }

 private:
  /// True if the backend itself takes the calls of a block as one.
  bool coalesces() const { return coalesces_ && watch_ != nullptr; }
  DelegateWork::Call call(const char* name, int peer, ::c10d::OpType type, Tensors outputs) const;
  /// The backend's work, `watched` until it ends; nullptr if it makes none.
  template <class Start>
  WorkPtr started(DelegateWork::Call call, Milliseconds timeout, bool watched, const Start& start);

  std::shared_ptr<PeerLinks> links_;  // nullptr: none
  const std::shared_ptr<Delegate> delegate_;
  BackendPtr inner_;
  const bool coalesces_;
  std::unique_ptr<DeviceWatch> watch_;  // of a backend for a device
  std::unique_ptr<Watch> late_;         // of another: operations that outlive the group's failure
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace fastcomm
