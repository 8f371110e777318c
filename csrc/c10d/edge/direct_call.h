// Collectives that do not come through c10d: from operators, and prepared ones.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "c10d/edge/backend.h"

namespace fastcomm {

/// A call with borrowed tensors and splits, which outlive it. It has the same place in the group's
/// order as one of c10d, the same errors, and is recorded alike.
struct DirectCall {
  OpKind kind = OpKind::kNone;
  at::TensorList inputs{}, outputs{};  // as in Request
  ::c10d::ReduceOp op{};
  int64_t root = Request::kNoRank;
  at::IntArrayRef input_splits{}, output_splits{};
  Milliseconds timeout = ::c10d::kUnsetTimeout;

  /// nullptr: a synchronous call is done. Raises TorchError.
  WorkPtr issue(FastcommBackend& backend, bool async) const;
  /// The same call to another of torch's backends, or to its checks in front of one.
  WorkPtr issue_to(::c10d::Backend& other) const;
};

/// The reduction of that name: "sum", "avg", "max", "min", "product", "band", "bor", "bxor". Raises
/// c10::ValueError of any other.
::c10d::ReduceOp reduction_named(const std::string& name);

/// A call that is issued again and again: its arguments are given once. Tensors may change between
/// two calls, and their memory may move: a call reads what they are when it is issued. From start()
/// to the end of wait() they must stay.
///
/// One thread at a time.
class PreparedCall {
 public:
  /// `call` without its tensors and splits. Raises c10::ValueError if the kind has no such call.
  PreparedCall(c10::intrusive_ptr<::c10d::Backend> backend, DirectCall call, Tensors inputs,
               Tensors outputs, std::vector<int64_t> input_splits,
               std::vector<int64_t> output_splits);
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  /// Returns when it is done; on a device, when the current stream waits for it.
  void run();
  /// Raises c10::ValueError if it was started and not waited for.
  void start();
  /// Of the call that was started: it is over then, in an error, too.
  void wait();

 private:
  WorkPtr issue(bool async) const {
    return own_ != nullptr ? call_.issue(*own_, async) : call_.issue_to(*backend_);
  }

  const c10::intrusive_ptr<::c10d::Backend> backend_;
  FastcommBackend* const own_;  // that, if it is fastcomm's
  const Tensors inputs_, outputs_;
  const std::vector<int64_t> input_splits_, output_splits_;
  DirectCall call_;
  WorkPtr work_;
  bool started_ = false;
};

}  // namespace fastcomm
