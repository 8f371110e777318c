#include "c10d/works/peer_work.h"

#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"
#include "c10d/life/without_gil.h"

namespace fastcomm {

PeerWork::PeerWork(std::shared_ptr<Communicator> group, int rank, const at::Tensor& tensor,
                   bool is_send, Milliseconds timeout, Continuations::Ptr continuations)
    : GroupWork(rank, is_send ? ::c10d::OpType::SEND : ::c10d::OpType::RECV,
                std::move(continuations)),
      group_(std::move(group)),
      is_send_(is_send),
      tensor_(tensor),
      buffer_(tensor),
      timeout_(timeout) {}

c10::intrusive_ptr<PeerWork> PeerWork::start(std::shared_ptr<Communicator> group,
                                             const at::Tensor& tensor, bool is_send, int peer,
                                             int tag, Milliseconds timeout,
                                             Continuations::Ptr continuations,
                                             const CallRecord& record) {
  const int rank = group->rank();
  auto work = c10::make_intrusive<PeerWork>(std::move(group), rank, tensor, is_send, timeout,
                                            std::move(continuations));
  work->tell(record);
  work->post(peer, tag);
  return work;
}

bool PeerWork::post(int peer, int tag, bool two_ways) {
  PeerCall call{
      is_send_, peer, tag, buffer_.dtype(), buffer_.count(), static_cast<char*>(buffer_.data())};
  call.two_ways = two_ways;
  call.record = record_;
  // The operation holds the work, and through it the tensor, until it is done.
  operation_ =
      group_->post(call, [work = c10::intrusive_ptr<PeerWork>::reclaim_copy(this)](
                             const PeerOperation& operation, const std::exception_ptr& error) {
        work->complete(operation, error);
      });
  return operation_ != nullptr;
}

void PeerWork::complete(const PeerOperation& operation, const std::exception_ptr& error) {
  // It goes another way, and whoever took it back ends this work.
  if (operation.was_taken_back() && !aborted_.load()) return;
  const int source = operation.source();
  end(error == nullptr ? nullptr : error_of(error), source < 0 ? source : number_of(source));
}

void PeerWork::end(std::exception_ptr error, int source) {
  std::exception_ptr translated = as_torch_error(error);
  if (translated == nullptr && !is_send_ && !aborted_.load()) {
    translated = caught([&] { buffer_.write_back(); });
  }
  source_.store(source, std::memory_order_release);
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
    const WithoutGil no_gil;
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
