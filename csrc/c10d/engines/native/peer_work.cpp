#include "c10d/engines/native/peer_work.h"

#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"

namespace fastcomm {

PeerWork::PeerWork(std::shared_ptr<Communicator> group, const at::Tensor& tensor, bool is_send,
                   Milliseconds timeout, Continuations::Ptr continuations)
    : GroupWork(group->rank(), is_send ? ::c10d::OpType::SEND : ::c10d::OpType::RECV,
                std::move(continuations)),
      group_(std::move(group)),
      tensor_(tensor),
      buffer_(tensor),
      timeout_(timeout) {}

c10::intrusive_ptr<PeerWork> PeerWork::start(std::shared_ptr<Communicator> group,
                                             const at::Tensor& tensor, bool is_send, int peer,
                                             int tag, Milliseconds timeout,
                                             Continuations::Ptr continuations) {
  auto work = c10::make_intrusive<PeerWork>(std::move(group), tensor, is_send, timeout,
                                            std::move(continuations));
  const Buffer& buffer = work->buffer_;
  const PeerCall call{is_send,        peer,           tag,
                      buffer.dtype(), buffer.count(), static_cast<char*>(buffer.data())};
  // The operation holds the work, and through it the tensor, until it is done.
  work->operation_ = work->group_->post(
      call, [work](const PeerOperation& operation, const std::exception_ptr& error) {
        work->complete(operation, error);
      });
  return work;
}

void PeerWork::complete(const PeerOperation& operation, const std::exception_ptr& error) {
  std::exception_ptr translated = as_torch_error(error);
  if (translated == nullptr && !operation.call().is_send && !aborted_.load()) {
    translated = caught([&] { buffer_.write_back(); });
  }
  source_.store(operation.source(), std::memory_order_release);
  finish(translated);
  {
    std::lock_guard<std::mutex> lock(future_mutex_);
    completed_here_ = true;
    if (future_ == nullptr) return;
  }
  settle_future(*future_, translated, result());
}

GroupWork::FuturePtr PeerWork::getFuture() {
  {
    std::lock_guard<std::mutex> lock(future_mutex_);
    if (future_ != nullptr) return future_;
    future_ = make_future();
    if (completed_here_) {                             // else complete() will see the future
      settle_future(*future_, exception(), result());  // with the lock: nothing is attached yet
      return future_;
    }
  }
  translating([&] { group_->in_background(operation_); });
  return future_;
}

bool PeerWork::is_settled() {
  if (!Work::isCompleted()) return false;
  std::lock_guard<std::mutex> lock(future_mutex_);
  return completed_here_ && (future_ == nullptr || future_->completed());
}

bool PeerWork::isCompleted() {
  if (is_settled()) return true;
  group_->poll_messages();
  if (is_settled()) return true;
  group_->examine();  // a caller that asks and never waits learns of a death, too
  return is_settled();
}

bool PeerWork::wait(std::chrono::milliseconds timeout) {
  if (!is_settled()) {
    translating(
        [&] { group_->wait(*operation_, timeout_, deadline_of_wait(timeout), g_interrupt_check); });
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return !aborted_.load();
}

void PeerWork::abort() {
  if (Work::isCompleted()) return;
  aborted_.store(true);
  translating([&] { group_->cancel(operation_); });
}

}  // namespace fastcomm
