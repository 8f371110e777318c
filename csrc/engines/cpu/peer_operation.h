// A send or a receive of one rank: the call, its progress, and its outcome.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/call_site.h"
#include "core/error.h"
#include "core/records.h"
#include "core/spans.h"
#include "core/types.h"

namespace fastcomm {

struct PeerCall {
  static constexpr int kAnyRank = -1;

  bool is_send = false;
  int peer = kAnyRank;  // of a receive from any rank
  int32_t tag = 0;
  DType dtype = DType::kFloat32;
  uint64_t count = 0;  // elements
  char* data = nullptr;
  /// The peer may get messages by another way, too (Communicator::take_elsewhere).
  bool two_ways = false;
  int shown_peer = kAnyRank;  // its number in messages; post() sets it
  CallRecord record{};        // told when the peer has come

  uint64_t bytes() const { return count * dtype_size(dtype); }
  const char* name() const { return is_send ? "send" : "recv"; }
};

/// "send(float32, 10 elements) to rank 1, tag 0".
inline std::string describe_message(bool is_send, DType dtype, uint64_t count, int peer, int tag) {
  const std::string other = peer < 0 ? "any rank" : concat("rank ", peer);
  return concat(is_send ? "send(" : "recv(", dtype_name(dtype), ", ", count, " elements) ",
                is_send ? "to " : "from ", other, ", tag ", tag);
}

class PeerOperation {
 public:
  /// Runs once, before done() holds, on the thread that ends the operation, outside of every lock.
  using OnFinish = std::function<void(const PeerOperation&, const std::exception_ptr&)>;

  /// `site` is the place of the call in the program, "" if not asked for.
  PeerOperation(const PeerCall& call, OnFinish on_finish, std::string site = "")
      : call_(call), site_(std::move(site)), on_finish_(std::move(on_finish)) {}
  PeerOperation(const PeerOperation&) = delete;
  PeerOperation& operator=(const PeerOperation&) = delete;

  /// For a tool that asks for spans; before it is posted.
  void show(const std::string& group, uint64_t sequence) {
    span_ = begin_span(group, call_.name(), sequence, call_.bytes());
    if (span_ == nullptr) return;
    const std::string peer = call_.peer < 0 ? "any rank" : concat("rank ", call_.shown_peer);
    span_->name += concat(call_.is_send ? " to " : " from ", peer);
    span_->is_message = true;
    span_->begun = span_->issued;
  }

  const PeerCall& call() const { return call_; }
  std::string describe() const {
    return describe_message(call_.is_send, call_.dtype, call_.count, call_.shown_peer, call_.tag) +
           at_site(site_);
  }
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Once it is done: the error, or nullptr; the sender of the received message, or -1.
  std::exception_ptr error() const { return error_; }
  int source() const { return source_; }
  bool was_taken_back() const { return taken_back_; }

 private:
  friend class PointToPoint;

  /// The peer has come: from here on data move.
  void note_met() {
    if (span_ != nullptr) span_->met = span_clock();
    call_.record.start();
  }

  void finish(std::exception_ptr error) {
    error_ = std::move(error);
    if (span_ != nullptr) end_span(std::move(span_), error_ != nullptr);
    // Moved out, so that its captures (a work that holds this operation, for one) are let go.
    const auto callback = std::move(on_finish_);
    on_finish_ = nullptr;
    if (callback) callback(*this, error_);
    // Release: a thread that sees done() sees the data, the source and the error.
    done_.store(true, std::memory_order_release);
  }

  const PeerCall call_;
  const std::string site_;
  std::unique_ptr<OperationSpan> span_;
  OnFinish on_finish_;
  // Under PointToPoint's lock:
  uint32_t number_ = 0;  // of its announcement
  uint64_t moved_ = 0;   // bytes through the slots
  bool matched_ = false;
  bool granted_ = false;
  bool in_background_ = false;
  bool over_ = false;  // it has ended, or is about to
  bool taken_back_ = false;
  int source_ = -1;

  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

}  // namespace fastcomm
