#include "coll/communicator.h"

#include "coll/progress.h"
#include "core/error.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

const char* name_of(const CallHeader& header) {
  return op_kind_name(static_cast<OpKind>(header.kind));
}

/// Advances until the operation is done (true), or waits for a peer for longer than `spin`, or for
/// one that seems to need this core. The clock is read only once the first looks were in vain: where
/// the peers are in step, a small operation ends before.
bool advance_for(Operation& operation, Clock::duration spin) {
  constexpr int kLooksPerClockRead = 32;
  if (operation.advance()) return true;
  if (spin.count() <= 0 || operation.crowded()) return false;
  std::optional<uint32_t> waiting_at;
  Deadline end;
  for (;;) {
    for (int look = 0; look < kLooksPerClockRead; ++look) {
      cpu_relax();
      if (operation.advance()) return true;
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

std::string message_front(int rank, int size, int peer, const char* operation, uint64_t sequence) {
  const std::string blamed = peer < 0 ? "" : concat("peer ", peer, ", ");
  return concat("[rank ", rank, " of ", size, ", ", blamed, operation, ", sequence ", sequence,
                "] ");
}

Communicator::Communicator(std::unique_ptr<PeerGroup> peers, GroupTraits traits,
                           ProgressEngine& engine)
    : peers_(std::move(peers)),
      traits_(std::move(traits)),
      engine_(engine),
      policy_(wait_policy(peers_->oversubscribed())),
      base_(load_flag(peers_->view().flag(peers_->rank(), 0))) {}

Communicator::~Communicator() { leave(); }

std::string Communicator::where(const Operation& operation, int peer) const {
  return message_front(rank(), size(), peer, name_of(operation.header()),
                       operation.header().sequence);
}

bool Communicator::pending() const {
  std::lock_guard<std::mutex> lock(state_);
  return !queue_.empty();
}

std::shared_ptr<Operation> Communicator::head() const {
  std::lock_guard<std::mutex> lock(state_);
  return queue_.empty() ? nullptr : queue_.front();
}

std::shared_ptr<Operation> Communicator::enqueue(
    const Call& call, Milliseconds timeout,
    std::function<void(const std::exception_ptr&)> on_finish) {
  std::shared_ptr<Operation> operation;
  std::exception_ptr failure;
  if (forked_from_endpoint()) {
    throw Error(ErrorCode::kForked,
                message_front(rank(), size(), -1, op_kind_name(call.kind), sequence_) +
                    "this is a child of fork(): a process group cannot be used here. Start workers "
                    "before init_process_group, with the spawn method, or keep them off the group");
  }
  {
    std::lock_guard<std::mutex> lock(state_);
    operation =
        std::make_shared<Operation>(call, *peers_, traits_, sequence_.load(), base_, timeout);
    operation->on_finish = std::move(on_finish);
    failure = failure_;
    if (failure == nullptr) {
      ++sequence_;
      base_ = operation->end_base();
      queue_.push_back(operation);
    }
  }
  if (failure != nullptr) operation->finish(failure);
  return operation;
}

std::shared_ptr<Operation> Communicator::admit(
    const Call& call, Milliseconds timeout,
    std::function<void(const std::exception_ptr&)> on_finish) {
  try {
    return enqueue(call, timeout, std::move(on_finish));
  } catch (const Error& error) {  // no memory left: the peers must not wait for this rank
    if (error.code() == ErrorCode::kSystem) abort(error.what());
    throw;
  }
}

std::shared_ptr<Operation> Communicator::run(const Call& call, Milliseconds timeout,
                                             const std::function<void()>& interrupted) {
  auto operation = admit(call, timeout, nullptr);
  if (operation->done()) return operation;
  try {
    wait(*operation, Deadline::max(), interrupted);
  } catch (...) {  // Ctrl-C: the peers cannot finish without this rank
    abort(concat("rank ", rank(), " was interrupted in ", describe_call(operation->header())));
    throw;
  }
  return operation;
}

std::shared_ptr<Operation> Communicator::start(
    const Call& call, Milliseconds timeout,
    std::function<void(const std::exception_ptr&)> on_finish) {
  auto operation = admit(call, timeout, std::move(on_finish));
  if (operation->done()) return operation;
  // A one-shot operation is a small copy and a look at the flags: cheaper here than a wake-up of
  // the engine. Anything longer would keep the caller from its own work.
  // So would the operations in front of it.
  if (operation->algorithm() != Algorithm::kPipelined && head() == operation) progress();
  if (!operation->done()) engine_.add(shared_from_this());
  return operation;
}

void Communicator::wait(Operation& operation, Deadline deadline,
                        const std::function<void()>& interrupted) {
  // The engine may have gone to sleep because this thread was driving: what is left is its again.
  const auto hand_over = [&] {
    std::atomic_thread_fence(std::memory_order_seq_cst);  // the release of drive_, then the look
    if (pending()) ring_if_asleep(peers_->own_doorbell());
  };
  try {
    progress(policy_.spin);
    if (!operation.done()) wait_on(operation, deadline, interrupted);
  } catch (...) {
    hand_over();
    throw;
  }
  hand_over();
}

void Communicator::wait_on(Operation& operation, Deadline deadline,
                           const std::function<void()>& interrupted) {
  const auto ready = [&] {
    if (operation.done()) return true;
    progress();
    return operation.done();
  };
  auto last_signal_check = Clock::now();
  const auto check = [&] {
    examine();
    if (interrupted && Clock::now() - last_signal_check > std::chrono::milliseconds(10)) {
      interrupted();
      last_signal_check = Clock::now();
    }
    if (Clock::now() > deadline && !operation.done()) {
      throw Error(ErrorCode::kTimeout, concat(where(operation, operation.awaited_peer()),
                                              "wait() reached its timeout; the operation goes on"));
    }
  };
  wait_until(policy_, peers_->own_doorbell(), ready, check, [&] { return operation.crowded(); });
}

bool Communicator::progress(Clock::duration spin) {
  Finished finished;
  bool moved = false;
  if (std::unique_lock<std::mutex> driving(drive_, std::try_to_lock); driving) {
    moved = drive(finished, spin);
  }
  finish(finished);
  return moved;
}

bool Communicator::drive(Finished& finished, Clock::duration spin) {
  bool moved = false;
  auto operation = head();
  while (operation != nullptr) {
    const uint32_t step = operation->step();
    try {
      if (!advance_for(*operation, spin)) return moved || operation->step() != step;
    } catch (const Error& error) {
      fail({error.code(), -1, where(*operation, -1) + error.what()}, finished);
      return true;
    }
    moved = true;
    std::lock_guard<std::mutex> lock(state_);
    if (queue_.empty() || queue_.front() != operation) return true;  // given up meanwhile
    queue_.pop_front();
    finished.emplace_back(std::move(operation), nullptr);
    operation = queue_.empty() ? nullptr : queue_.front();
  }
  return moved;
}

void Communicator::examine() {
  Finished finished;
  if (std::unique_lock<std::mutex> driving(drive_, std::try_to_lock); driving) {
    if (auto operation = head()) {
      if (const auto found = trouble(*operation)) fail(*found, finished);
    }
  }
  finish(finished);
}

std::optional<Communicator::Trouble> Communicator::trouble(const Operation& operation) const {
  auto found = evidence(operation);
  // First the evidence, then the flags: all that a peer published before it gave up, left or died
  // is seen here. An operation that waits for nobody goes on, whatever happened: it ends well, or
  // finds by itself what a faster peer has found (a mismatch).
  if (found && operation.awaited_peer() < 0) found.reset();
  return found;
}

std::optional<Communicator::Trouble> Communicator::evidence(const Operation& operation) const {
  const auto error = [&](ErrorCode code, int peer, const std::string& text) {
    return Trouble{code, peer, where(operation, peer) + text};
  };
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Pad& pad = peers_->pad(peer);
    // A rank gives up, says goodbye, and ends, in this order. Read the other way round: who sees one
    // of them sees all that came before it, however much happens between two of these loads.
    const bool lost = peers_->lost(peer);
    const uint64_t goodbye = pad.goodbye.load(std::memory_order_acquire);
    // Judged first: goodbye and death may follow from it and say less.
    if (pad.poisoned.load(std::memory_order_acquire) != 0) {
      if (operation.header().sequence >= pad.first_failed) return told_by(peer, operation);
      continue;  // it has done its part of this one
    }
    if (goodbye != 0 && operation.awaits(peer)) {
      return error(ErrorCode::kPeerLeft, peer,
                   concat(peers_->describe(peer), " destroyed its process group after ",
                          goodbye - 1, " operations; this one was never called there"));
    }
    // A process that said goodbye and ended did not die on us.
    if (goodbye == 0 && lost) {
      return error(ErrorCode::kPeerLost, peer,
                   concat(peers_->describe(peer),
                          " died. Look at its own output for the cause; this "
                          "process group cannot be used any more"));
    }
  }
  if (Clock::now() > operation.deadline()) {
    std::string late;
    for (int peer = 0; peer < size(); ++peer) {
      if (operation.awaits(peer)) late += concat(late.empty() ? "" : ", ", peers_->describe(peer));
    }
    return error(ErrorCode::kTimeout, operation.awaited_peer(),
                 concat(describe_call(operation.header()), " did not end within ",
                        operation.timeout().count(), " ms; not arrived: ", late,
                        ". Look what they are doing, or raise timeout="));
  }
  return std::nullopt;
}

Communicator::Trouble Communicator::told_by(int peer, const Operation& operation) const {
  const Pad& pad = peers_->pad(peer);
  auto cause = static_cast<ErrorCode>(pad.cause);
  int blamed = pad.blamed;
  // Whichever rank notices first, all of them raise the same error for the same cause.
  switch (cause) {
    case ErrorCode::kMismatch:
    case ErrorCode::kTimeout:
    case ErrorCode::kPeerLost:
    case ErrorCode::kPeerLeft:
      break;
    default:
      cause = ErrorCode::kPoisoned;
      blamed = peer;
  }
  return {cause, blamed,
          where(operation, blamed) +
              concat(peers_->describe(peer), " gave the group up: ", pad.reason)};
}

void Communicator::fail(const Trouble& trouble, Finished& finished) {
  std::lock_guard<std::mutex> lock(state_);
  if (failure_ == nullptr) {
    failure_ = std::make_exception_ptr(Error(trouble.code, trouble.text));
    peers_->own_pad().poison(static_cast<uint32_t>(trouble.code), trouble.peer,
                             sequence_ - queue_.size(), trouble.text.c_str());
    peers_->wake_peers();
  }
  give_up_queue(finished);
}

void Communicator::give_up_queue(Finished& finished) {
  for (auto& operation : queue_) {
    operation->quarantine();
    finished.emplace_back(std::move(operation), failure_);
  }
  queue_.clear();
}

void Communicator::finish(Finished& finished) {
  if (finished.empty()) return;
  for (auto& [operation, error] : finished) operation->finish(error);
  // Another thread of this process may sleep until one of them is done.
  std::atomic_thread_fence(std::memory_order_seq_cst);  // doorbell.h: change first, then look
  ring_if_asleep(peers_->own_doorbell());
}

void Communicator::leave() {
  if (forked_from_endpoint()) return;  // no mapping, maybe locked mutexes: a child keeps away
  Finished finished;
  {
    std::lock_guard<std::mutex> driving(drive_);
    std::lock_guard<std::mutex> lock(state_);
    if (left_) return;
    left_ = true;
    if (failure_ == nullptr) {
      failure_ = std::make_exception_ptr(
          Error(ErrorCode::kPoisoned, message_front(rank(), size(), -1, "none", sequence_) +
                                          "this process group was destroyed; create a new one"));
    }
    const uint64_t completed = sequence_ - queue_.size();
    give_up_queue(finished);
    // Release: peers that see the goodbye see every flag published before it.
    peers_->own_pad().goodbye.store(completed + 1, std::memory_order_release);
  }
  peers_->wake_peers();
  finish(finished);
}

void Communicator::abort(const std::string& why) {
  if (forked_from_endpoint()) return;
  Finished finished;
  {
    std::lock_guard<std::mutex> driving(drive_);
    fail({ErrorCode::kPoisoned, -1, message_front(rank(), size(), -1, "none", sequence_) + why},
         finished);
  }
  finish(finished);
}

}  // namespace fastcomm
