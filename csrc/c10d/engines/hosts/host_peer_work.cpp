#include "c10d/engines/hosts/host_peer_work.h"

#include <ATen/ops/from_blob.h>

#include <thread>
#include <utility>

#include "c10d/life/exception.h"
#include "c10d/life/without_gil.h"

namespace fastcomm {

HostPeerWork::HostPeerWork(std::shared_ptr<HostFailures> failures,
                           std::shared_ptr<Communicator> inside, Message message,
                           const at::Tensor& tensor, Milliseconds timeout,
                           Continuations::Ptr continuations)
    : PeerWork(std::move(inside), message.rank, tensor, message.is_send, timeout,
               std::move(continuations)),
      failures_(std::move(failures)),
      message_(std::move(message)) {}

bool HostPeerWork::start() {
  try {
    return post(message_.peer, message_.tag, /*two_ways=*/true);
  } catch (...) {
    std::rethrow_exception(error_of(std::current_exception()));
  }
}

void HostPeerWork::go_elsewhere(const Issue& issue) {
  const std::lock_guard<std::mutex> lock(going_);
  if (aborted_.load() || !group_->take_back(operation_)) return;
  const auto error = caught([&] {
    other_ = issue(*this);
    if (followed_) follow(other_);
  });
  if (error != nullptr && !claimed_.exchange(true)) end(error, -1);
}

std::vector<at::Tensor> HostPeerWork::bytes() const {
  const auto keep = [buffer = buffer_](void*) {};
  return {at::from_blob(buffer_.data(), {static_cast<int64_t>(buffer_.bytes())}, keep, at::kByte)};
}

WorkPtr HostPeerWork::other() {
  const std::lock_guard<std::mutex> lock(going_);
  return other_;
}

void HostPeerWork::end_with_other(::c10d::Work& other, const std::exception_ptr& error) {
  if (!claimed_.exchange(true)) {
    int source = -1;
    // A work that has failed may not know.
    static_cast<void>(caught([&] { source = other.sourceRank(); }));
    end(error, source);
  }
  while (!is_settled()) std::this_thread::yield();  // another thread is about to
}

void HostPeerWork::follow(const WorkPtr& other) {
  const auto held = c10::intrusive_ptr<HostPeerWork>::reclaim_copy(this);
  other->getFuture()->addCallback([held, other](c10::ivalue::Future& future) {
    held->end_with_other(*other, future.hasError() ? future.exception_ptr() : nullptr);
  });
}

bool HostPeerWork::isCompleted() {
  if (PeerWork::isCompleted()) return true;
  const WorkPtr other = this->other();
  if (other == nullptr || !other->isCompleted()) return false;
  end_with_other(*other, other->exception());
  return true;
}

bool HostPeerWork::wait(std::chrono::milliseconds timeout) {
  const WithoutGil no_gil;
  const Deadline deadline = deadline_of_wait(timeout);
  const bool done = PeerWork::wait(timeout);  // also returns when it has been taken back
  const WorkPtr other = this->other();
  if (other != nullptr && !is_settled()) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    const auto rest = timeout == kNoTimeout ? kNoTimeout : std::max(left, Milliseconds(1));
    const auto error = caught([&] { other->wait(rest); });
    if (error != nullptr && !other->isCompleted()) std::rethrow_exception(error);  // the wait's own
    end_with_other(*other, error);
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return done && !aborted_.load();
}

void HostPeerWork::abort() {
  if (const WorkPtr other = this->other()) {
    if (is_settled()) return;
    aborted_.store(true);
    return other->abort();
  }
  PeerWork::abort();
}

GroupWork::FuturePtr HostPeerWork::getFuture() {
  WorkPtr other;
  {
    const std::lock_guard<std::mutex> lock(going_);
    if (!std::exchange(followed_, true)) other = other_;
  }
  if (other != nullptr) follow(other);
  return PeerWork::getFuture();
}

std::exception_ptr HostPeerWork::error_of(const std::exception_ptr& error) {
  return failures_->of(message_.subject, error);
}

int HostPeerWork::number_of(int source) const { return group_->transport().number_of(source); }

}  // namespace fastcomm
