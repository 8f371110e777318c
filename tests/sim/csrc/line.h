// What a SimBackend has been given and has not finished: works that end one after the other.
//
// An operation runs in Gloo, over copies on the host; a thread of the line waits for it and copies
// the results to the user's memory. So nothing touches the user's memory once the line has failed,
// whatever Gloo still does.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "device.h"

namespace sim {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<::c10d::Work>;
using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// An exception of torch's type for communication errors.
inline std::exception_ptr communication_error(const std::string& text) {
  try {
    C10_THROW_ERROR(DistBackendError, text);
  } catch (...) {
    return std::current_exception();
  }
}

/// Complete when the data is there: the host waits, in place of the user's stream. Until then its
/// device is busy, as with a kernel of NCCL's.
class SimWork final : public ::c10d::Work {
 public:
  SimWork(int rank, ::c10d::OpType type, uint64_t sequence, Tensors outputs, c10::Device device,
          Milliseconds timeout)
      : Work(rank, type),
        sequence_(sequence),
        deadline_(Clock::now() + timeout),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device})),
        busy_(shim::busy_streams[device.index()]) {
    ++busy_;
  }

  /// Raises the operation's error; also raises when `timeout` passes, which leaves the operation as
  /// it is.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto done = [this] { return completed_; };
    if (timeout == kNoTimeout) {
      cv_.wait(lock, done);
    } else if (!cv_.wait_for(lock, timeout, done)) {
      std::rethrow_exception(communication_error(
          c10::str("Work ", sequence_, " timed out in blocking wait (", timeout.count(), " ms).")));
    }
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }
  /// From here on isCompleted() raises what CUDA raises for every event once a kernel has crashed.
  void spoil() { spoilt_ = true; }
  bool isCompleted() override {
    shim::pass_driver();  // as a query of an event
    TORCH_CHECK(!spoilt_, "CUDA error: device-side assert triggered");
    return Work::isCompleted();
  }
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }

  Clock::time_point deadline() const { return deadline_; }
  /// Called once. Who waits goes on when the line is done with the driver: a thread that goes on
  /// and holds the driver until the next operation ends would else keep the line from ending that.
  void complete(const std::exception_ptr& error) {
    --busy_;  // first: a thread that holds the driver may wait for this
    if (!error) future_->markCompleted(c10::IValue(outputs_));
    finish(error);
    if (error) future_->setError(error);
  }

 private:
  const uint64_t sequence_;
  const Clock::time_point deadline_;
  const Tensors outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<int>& busy_;
  std::atomic<bool> spoilt_{false};
};

/// One operation in the line.
struct Pending {
  c10::intrusive_ptr<SimWork> work;
  std::vector<WorkPtr> inner;                              // Gloo's; all of them are needed
  bool message = false;                                    // the works are a send or a receive
  bool hangs = false;                                      // it never completes
  std::vector<std::function<void()>> finish;               // on the copies, after the works
  std::vector<std::pair<at::Tensor, at::Tensor>> results;  // copies, and the users' memory
};

/// Thread-safe.
class Line : public std::enable_shared_from_this<Line> {
 public:
  explicit Line(int rank) : rank_(rank) {}

  /// Raises the error with which the line has failed.
  void require_healthy() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  ::c10d::ErrorType error() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }
  /// What the line is given from now on is silently not done.
  void hang() {
    const std::lock_guard<std::mutex> lock(mutex_);
    hung_ = true;
  }
  bool hung() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return hung_;
  }

  WorkPtr add(Pending pending) {
    auto work = pending.work;
    std::exception_ptr failure;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      failure = failure_;
      if (!failure) {
        pending_.push_back(std::move(pending));
        if (!started_) {
          std::thread([line = shared_from_this()] { line->run(); }).detach();
          started_ = true;
        }
      }
    }
    changed_.notify_all();
    if (failure) work->complete(failure);
    return work;
  }

  /// Ends what is pending with this error, and everything that follows. Once.
  void fail(const std::exception_ptr& failure, ::c10d::ErrorType error) {
    std::deque<Pending> lost;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) return;
      failure_ = failure;
      error_ = error;
      lost.swap(pending_);
      unsettled_ = !lost.empty();
    }
    changed_.notify_all();
    for (auto& each : lost) {
      if (each.message) {
        for (const auto& inner : each.inner) inner->abort();
      }
      each.work->complete(failure);
    }
  }

  /// Returns once nothing is pending, or will ever be done.
  void drain(Milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto drained = [this] { return pending_.empty() && !ending_; };
    changed_.wait_for(lock, timeout, [&] { return drained() || failure_ || hung_; });
  }

  /// Whether Gloo may still be busy.
  bool unsettled() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return unsettled_;
  }

 private:
  enum class Outcome { kDone, kFailed, kLate };

  void run() {
    for (;;) {
      Pending first;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return failure_ || !pending_.empty(); });
        if (failure_) return;
        first = pending_.front();
      }
      // A peer that is gone shows in Gloo. NCCL's ranks of one machine wait for it instead.
      auto outcome = settle(first);
      if (outcome == Outcome::kFailed) {
        hang();
        changed_.notify_all();
        outcome = await_failure(first.work->deadline());
      }
      if (outcome == Outcome::kLate) fail(too_late(*first.work), ::c10d::ErrorType::TIMEOUT);
      if (outcome != Outcome::kDone || !write_back(first)) return;
      first.work->complete(nullptr);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        ending_ = false;
      }
      changed_.notify_all();
    }
  }

  Outcome settle(const Pending& pending) {
    const auto deadline = pending.work->deadline();
    if (pending.hangs) return Outcome::kFailed;
    for (const auto& inner : pending.inner) {
      try {
        if (pending.message) {  // is complete in wait() only, which fail() interrupts
          const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
          if (!inner->wait(std::max(left, Milliseconds(1)))) return Outcome::kFailed;
          continue;
        }
        while (!inner->isCompleted()) {
          if (failed()) return Outcome::kFailed;
          if (Clock::now() > deadline) return Outcome::kLate;
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        inner->wait();
      } catch (const std::exception&) {
        return Clock::now() > deadline ? Outcome::kLate : Outcome::kFailed;
      }
    }
    for (const auto& finish : pending.finish) finish();
    return Outcome::kDone;
  }

  Outcome await_failure(Clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool failed = changed_.wait_until(lock, deadline, [this] { return failure_ != nullptr; });
    return failed ? Outcome::kFailed : Outcome::kLate;
  }

  /// Under the lock: nothing is written once fail() has returned.
  bool write_back(const Pending& pending) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return false;
    const at::NoGradGuard no_grad;
    for (const auto& [copy, user] : pending.results) user.copy_(copy);
    pending_.pop_front();
    ending_ = true;
    return true;
  }

  bool failed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_ != nullptr;
  }

  std::exception_ptr too_late(const SimWork& work) const {
    return communication_error(c10::str(
        "[Rank ", rank_, "] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
        work.getSequencenumber(), ", OpType=", ::c10d::opTypeToString(work.retrieveOpType()),
        ")."));
  }

  const int rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  std::exception_ptr failure_;
  ::c10d::ErrorType error_ = ::c10d::ErrorType::SUCCESS;
  bool hung_ = false;
  bool ending_ = false;  // a work is no longer pending, and not complete yet
  bool started_ = false;
  bool unsettled_ = false;
};

}  // namespace sim
