#include "engines/cpu/communicator.h"

#include <algorithm>

#include "core/call_site.h"
#include "core/control.h"
#include "core/error.h"
#include "engines/cpu/progress_thread.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// Advances until the operation is done (true), or waits longer than `spin` for a peer, or for one
/// that seems to need this core. The clock is read only after the first looks have failed: if the
/// peers are in step, a small operation ends before that.
bool poll_for(Operation& operation, uint32_t base, Clock::duration spin) {
  constexpr int kLooksPerClockRead = 32;
  if (operation.poll(base)) return true;
  if (spin.count() <= 0 || operation.crowded()) return false;
  std::optional<uint32_t> waiting_at;
  Deadline end;
  for (;;) {
    for (int look = 0; look < kLooksPerClockRead; ++look) {
      cpu_relax();
      if (operation.may_move() && operation.poll(base)) return true;
    }
    const auto now = Clock::now();
    if (waiting_at != operation.step()) {  // each wait has its own bound
      waiting_at = operation.step();
      end = now + spin;
    }
    if (now > end) return false;
  }
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> peers, GroupTraits traits,
                           ProgressThread& progress_thread)
    : peers_(std::move(peers)),
      traits_(std::move(traits)),
      progress_thread_(progress_thread),
      policy_(wait_policy(peers_->oversubscribed())),
      messages_(*peers_, traits_.layout.total()),
      short_(*peers_, traits_),
      base_(load_flag(peers_->view().flags[peers_->rank()])) {}

Communicator::~Communicator() { leave(); }

bool Communicator::pending() const {
  if (messages_.needs_progress()) return true;
  std::lock_guard<std::mutex> lock(state_);
  return !queue_.empty();
}

std::shared_ptr<Operation> Communicator::head() const {
  std::lock_guard<std::mutex> lock(state_);
  return queue_.empty() ? nullptr : queue_.front();
}

std::shared_ptr<Operation> Communicator::enqueue(const Call& call, Milliseconds timeout,
                                                 Operation::OnFinish on_finish) {
  std::shared_ptr<Operation> operation;
  std::exception_ptr failure;
  check_not_forked([&] { return where(op_kind_name(call.kind)); });
  // Takes the interpreter's lock: before any of this group's.
  std::string site = call.part_of == nullptr ? call_site() : call.part_of->site;
  {
    std::lock_guard<std::mutex> lock(state_);
    operation = made(call, sequence_, timeout, std::move(site));
    operation->on_finish = std::move(on_finish);
    if (call.part_of == nullptr)
      operation->span = begin_span(label_, op_kind_name(call.kind), sequence_, call.bytes());
    if (failure_ != nullptr) {
      failure = failed_before(op_kind_name(call.kind));
    } else {
      ++sequence_;
      queue_.push_back(operation);
      queued_.store(queue_.size(), std::memory_order_relaxed);
    }
  }
  if (failure != nullptr) operation->finish(failure);
  return operation;
}

std::shared_ptr<Operation> Communicator::made(const Call& call, uint64_t sequence,
                                              Milliseconds timeout, std::string site) {
  for (const auto& earlier : earlier_) {
    // 1: no other thread has it or can get it. What threads that had it did comes before the fence,
    // since each let go of it with release.
    if (earlier == nullptr || !earlier->is_like(call)) continue;
    if (earlier.use_count() != 1 && !(FC_LEFT_OUT(Control::kUseHeld) && earlier->done())) continue;
    std::atomic_thread_fence(std::memory_order_acquire);
    earlier->renew(call, sequence, timeout, std::move(site));
    return earlier;
  }
  auto operation =
      std::make_shared<Operation>(call, *peers_, traits_, sequence, timeout, std::move(site));
  if (operation->is_like(call)) earlier_[next_earlier_++ % earlier_.size()] = operation;
  return operation;
}

std::shared_ptr<Operation> Communicator::admit(const Call& call, Milliseconds timeout,
                                               Operation::OnFinish on_finish) {
  try {
    return enqueue(call, timeout, std::move(on_finish));
  } catch (const Error& error) {  // no memory left: the peers must not wait for this rank
    if (error.code() == ErrorCode::kSystem) abort(error.what());
    throw;
  }
}

std::shared_ptr<Operation> Communicator::start(const Call& call, Milliseconds timeout,
                                               Operation::OnFinish on_finish) {
  auto operation = admit(call, timeout, std::move(on_finish));
  if (operation->done()) return operation;
  operation->begin_deadline();
  // An operation of one step is a small copy and a look at the flags: cheaper here than waking the
  // progress thread. A longer one, or earlier operations, would keep the caller from its own work.
  if (operation->brief() && head() == operation) poll();
  if (operation->done()) return operation;
  try {
    progress_thread_.add(shared_from_this());
  } catch (const Error& error) {  // the peers must not wait for this rank
    give_up({error.code(), -1, where(*operation, -1) + error.what()});
  }
  return operation;
}

// The progress thread may have gone to sleep because this thread was driving: the rest is its job
// again. It was told of the rest (add(), after queued_ was stored), counted itself in as a sleeper,
// passed a fence, and found drive_ taken; this thread released drive_ and passes one, too. So that
// fence comes first, or it would have found drive_ free: the look sees both.
Communicator::HandOver::~HandOver() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (group.queued_.load(std::memory_order_relaxed) == 0) return;
  ring_if_asleep(group.peers_->own_doorbell());
}

void Communicator::wait(Operation& operation, Deadline deadline,
                        const std::function<void()>& interrupted) {
  const HandOver later(*this);
  poll(policy_.spin);
  if (!operation.done()) wait_until_done(operation, deadline, interrupted);
}

void Communicator::wait_until_done(Operation& operation, Deadline deadline,
                                   const std::function<void()>& interrupted) {
  operation.begin_deadline();  // here, since most calls end before that
  const auto ready = [&] {
    if (operation.done()) return true;
    poll();
    return operation.done();
  };
  auto asked = Clock::now();
  const auto check = [&] {
    examine();
    ask(interrupted, asked, operation);
    if (Clock::now() > deadline && !operation.done()) {
      throw Error(ErrorCode::kTimeout, concat(where(operation, operation.awaited_peer()),
                                              "wait() reached its timeout; the operation goes on"));
    }
  };
  wait_until(policy_, peers_->own_doorbell(), ready, check, [&] { return operation.crowded(); });
}

bool Communicator::poll(Clock::duration spin) {
  Finished finished;
  bool moved = false;
  if (std::unique_lock<std::mutex> driving(drive_, std::try_to_lock); driving) {
    moved = poll_queue(finished, spin);
  }
  finish(finished);
  return poll_messages() || moved;
}

bool Communicator::poll_queue(Finished& finished, Clock::duration spin) {
  bool moved = false;
  auto operation = head();
  while (operation != nullptr) {
    const uint32_t step = operation->step();
    if (const auto before = step == 0 ? given_up_before(*operation) : std::nullopt) {
      fail(*before, finished);
      return true;
    }
    try {
      if (!poll_for(*operation, base_, spin)) return moved || operation->step() != step;
    } catch (const MismatchError& error) {
      fail({error.code(), error.odd, where(*operation, error.odd) + error.what(), error.calls},
           finished);
      return true;
    } catch (const Error& error) {
      fail({error.code(), -1, where(*operation, -1) + error.what()}, finished);
      return true;
    } catch (const std::exception& error) {  // no memory for what a peer sends
      fail({ErrorCode::kSystem, -1, where(*operation, -1) + error.what()}, finished);
      return true;
    }
    moved = true;
    std::lock_guard<std::mutex> lock(state_);
    if (queue_.empty() || queue_.front() != operation) return true;  // given up meanwhile
    queue_.pop_front();
    queued_.store(queue_.size(), std::memory_order_relaxed);
    base_ = operation->end_base();
    finished.emplace_back(std::move(operation), nullptr);
    operation = queue_.empty() ? nullptr : queue_.front();
  }
  return moved;
}

void Communicator::finish(Finished& finished) {
  // Relaxed: the thread that failed the group looks here itself, later.
  if (to_spread_.load(std::memory_order_relaxed)) spread_failure();
  messages_.deliver();
  if (finished.empty()) return;
  for (auto& [operation, error] : finished) operation->finish(error);
  // Another thread of this process may sleep until one of them is done.
  std::atomic_thread_fence(std::memory_order_seq_cst);  // doorbell.h: change first, then look
  ring_if_asleep(peers_->own_doorbell());
}

void Communicator::leave(const std::string& how) {
  if (forked_from_endpoint()) return;  // meanwhile given up
  Finished finished;
  {
    std::lock_guard<std::mutex> driving(drive_);
    std::lock_guard<std::mutex> lock(state_);
    if (left_) return;
    left_ = true;
    if (failure_ == nullptr) {
      failure_ = std::make_exception_ptr(
          Error(ErrorCode::kPoisoned,
                where("none") + "this process group was destroyed; create a new one"));
    }
    const uint64_t completed = sequence_ - queue_.size();
    give_up_queue(finished);
    messages_.stop(failure_);  // before the leave notice: peers may free their windows after it
    peers_->own_control_block().announce_leave(completed, how.c_str());
  }
  peers_->wake_peers();
  finish(finished);
}

}  // namespace fastcomm
