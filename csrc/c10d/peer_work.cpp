#include "c10d/peer_work.h"

#include <optional>
#include <stdexcept>

#include "c10d/exception.h"
#include "c10d/work.h"

namespace fastcomm {
namespace {

/// Of the exception that is being handled.
std::exception_ptr engine_failed(Communicator& group, const Exchange& exchange) {
  const EngineError failure(std::current_exception());
  return group.exchange_failed(exchange.name, exchange.peer, failure.code,
                               exchange.text + ": Gloo failed: " + failure.text);
}

}  // namespace

c10::intrusive_ptr<::c10d::Work> PeerWork::start(std::shared_ptr<Communicator> group,
                                                 Exchange exchange, Milliseconds timeout,
                                                 const StartStock& start_stock) {
  if (group == nullptr || group->size() == 1) return start_stock();
  if (const auto failure = group->failure()) std::rethrow_exception(failure);
  c10::intrusive_ptr<::c10d::Work> engine;
  try {
    engine = start_stock();
  } catch (const c10::Error&) {
    throw;  // the arguments
  } catch (const std::logic_error&) {
    throw;
  } catch (...) {
    std::rethrow_exception(engine_failed(*group, exchange));
  }
  return c10::make_intrusive<PeerWork>(std::move(group), std::move(exchange), timeout,
                                       std::move(engine));
}

PeerWork::PeerWork(std::shared_ptr<Communicator> group, Exchange exchange, Milliseconds timeout,
                   c10::intrusive_ptr<::c10d::Work> engine)
    : ::c10d::Work(group->rank(),
                   exchange.name[0] == 's' ? ::c10d::OpType::SEND : ::c10d::OpType::RECV),
      group_(std::move(group)),
      exchange_(std::move(exchange)),
      timeout_(timeout),
      engine_(std::move(engine)) {}

bool PeerWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    const Deadline deadline = timeout == kNoTimeout ? Deadline::max() : Clock::now() + timeout;
    translating([&] { wait_in_slices(deadline); });
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return !aborted_.load();
}

void PeerWork::wait_in_slices(Deadline deadline) {
  const Deadline limit = Clock::now() + timeout_;
  std::optional<Deadline> stalled_since;
  while (!isCompleted()) {
    try {
      if (WaitSlices::wait(*engine_)) return complete(nullptr);
    } catch (...) {
      return complete(engine_failed(*group_, exchange_));
    }
    look_around(deadline, limit, stalled_since);
  }
}

void PeerWork::look_around(Deadline deadline, Deadline limit,
                           std::optional<Deadline>& stalled_since) {
  if (aborted_.load()) return complete(nullptr);
  group_->examine();
  if (const auto error = group_->exchange_stalled(exchange_.name, stalled_since)) {
    return complete(error);
  }
  try {
    if (g_interrupt_check) g_interrupt_check();
  } catch (...) {  // Ctrl-C: the peer cannot finish without this rank
    group_->abort(concat("rank ", group_->rank(), " was interrupted in ", exchange_.text));
    complete(group_->failure());
    throw;
  }
  const auto now = Clock::now();
  if (now > limit) {
    complete(
        group_->exchange_failed(exchange_.name, exchange_.peer, ErrorCode::kTimeout,
                                concat(exchange_.text, " did not end within ", timeout_.count(),
                                       " ms. Look what the peer is doing, or raise timeout=")));
  } else if (now > deadline) {
    throw Error(ErrorCode::kTimeout,
                concat(message_front(group_->rank(), group_->size(), exchange_.peer, exchange_.name,
                                     group_->sequence()),
                       exchange_.text, ": wait() reached its timeout; the operation goes on"));
  }
}

void PeerWork::abort() {
  aborted_.store(true);
  engine_->abort();
}

void PeerWork::complete(const std::exception_ptr& error) {
  if (claimed_.exchange(true)) return;
  finish(as_torch_error(error));
}

}  // namespace fastcomm
