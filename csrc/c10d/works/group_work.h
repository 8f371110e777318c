// The common part of all engines' works.
#pragma once

#include <ATen/core/ivalue.h>

#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "c10d/life/flight_recorder.h"
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

  /// Ends an entry of the flight recorder with this work, or now if that has ended.
  virtual void end_with(const RecordedEntry& entry) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!has_ended_) {
        entry_ = entry;
        return;
      }
    }
    entry.end(has_succeeded_);  // which does not change any more
  }

 protected:
  GroupWork(int rank, ::c10d::OpType type, Continuations::Ptr continuations)
      : ::c10d::Work(rank, type), continuations_(std::move(continuations)) {}

  /// As Work's. Who has waited for the work finds its entry ended.
  void finish(std::exception_ptr error = nullptr) {
    // A work that gets an entry was issued after a group had become a recorded one.
    if (RecordedGroup::any()) end_entry(error == nullptr);
    ::c10d::Work::finish(std::move(error));
  }

 private:
  void end_entry(bool well) {
    RecordedEntry entry;
    {
      // end_with() had this lock before, and its entry is seen here; or it has it later, and ends
      // the entry itself.
      const std::lock_guard<std::mutex> lock(mutex_);
      has_ended_ = true;
      has_succeeded_ = well;
      entry = entry_;
    }
    entry.end(well);
  }

  RecordedEntry entry_;  // under mutex_, as what follows
  bool has_ended_ = false, has_succeeded_ = false;
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
