// The common part of all engines' works.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "c10d/life/call_end.h"
#include "c10d/works/continuations.h"

namespace fastcomm {

/// A work of a group. Python's get_future() returns a future with the group's continuations
/// (bindings/futures.cpp).
class GroupWork : public ::c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  using Tensors = std::vector<at::Tensor>;

  /// The group's queue of code that users attach to futures.
  const Continuations::Ptr& continuations() const { return continuations_; }

  /// Ends what is written down of its call with this work, or now if that has ended. Once.
  virtual void end_with(const CallEnd& end) {
    end_ = end;
    End open = End::kOpen;
    // Release: who ends the work sees `end_`. Acquire: or it has, and `ended_in_` is seen here.
    if (!end_state_.compare_exchange_strong(open, End::kTold, std::memory_order_acq_rel)) {
      end_.end(ended_in_);
    }
  }

  ~GroupWork() override {
    if (end_state_.load(std::memory_order_relaxed) == End::kTold) end_.let_go();
  }

 protected:
  GroupWork(int rank, ::c10d::OpType type, Continuations::Ptr continuations)
      : ::c10d::Work(rank, type), continuations_(std::move(continuations)) {}

  /// As Work's. Who has waited for the work finds its call written down as ended.
  void finish(std::exception_ptr error = nullptr) {
    ended_in_ = error;
    if (end_state_.exchange(End::kEnded, std::memory_order_acq_rel) == End::kTold) {
      end_.end(error);
    }
    ::c10d::Work::finish(std::move(error));
  }

 private:
  enum class End : uint8_t { kOpen, kTold, kEnded };

  std::atomic<End> end_state_{End::kOpen};
  CallEnd end_;                  // of end_with(), before kTold
  std::exception_ptr ended_in_;  // of finish(), before kEnded
  const Continuations::Ptr continuations_;
};

/// A future of a list of tensors on these devices.
inline GroupWork::FuturePtr make_future(std::vector<c10::Device> devices = {}) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  std::move(devices));
}

inline void settle_future(c10::ivalue::Future& future, const std::exception_ptr& error,
                          const c10::IValue& value) {
  error == nullptr ? future.markCompleted(value) : future.setError(error);
}

}  // namespace fastcomm
