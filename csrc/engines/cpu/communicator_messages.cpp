// A group's sends and receives: their waits, and the reasons that keep them from ending.
#include "engines/cpu/communicator.h"
#include "engines/cpu/progress_thread.h"
#include "engines/cpu/spin_for.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// A wait looks around this often, even if all goes well.
constexpr Milliseconds kLookAround{10};

/// Long enough that not every call has to wake the progress thread anew.
constexpr Milliseconds kForget{100};

}  // namespace

std::shared_ptr<PeerOperation> Communicator::post(const PeerCall& call,
                                                  PeerOperation::OnFinish on_finish) {
  check_not_forked([&] { return message_front(rank(), size(), -1, call.name(), sequence_); });
  // A short message needs no answer, and one that was sent before may lie there already.
  if (const auto before = given_up_before(Subject{call.name(), sequence_})) give_up(*before);
  if (call.is_send && peers_->control_block(call.peer).left.load(std::memory_order_acquire) != 0) {
    give_up(departure_of(call.peer, {call.name(), sequence_}, " before this message was sent"));
  }
  if (call.is_send && call.two_ways && !messages_.begin_announcing(call.peer)) return nullptr;
  PeerCall shown = call;
  if (call.peer >= 0) shown.shown_peer = peers_->number_of(call.peer);
  auto operation = std::make_shared<PeerOperation>(shown, std::move(on_finish), call_site());
  operation->show(label_, sequence_);
  try {
    if (!messages_.post(operation)) {
      std::lock_guard<std::mutex> lock(state_);
      std::rethrow_exception(failed_before(call.name()));
    }
  } catch (const Error& error) {  // no memory left: the peers must not wait for this rank
    if (error.code() == ErrorCode::kSystem && failure() == nullptr) abort(error.what());
    throw;
  }
  tell_mismatch();  // which may come from another operation
  messages_.deliver();
  if (!operation->done() && messages_.in_background(operation, false)) poll_messages_later();
  return operation;
}

void Communicator::in_background(const std::shared_ptr<PeerOperation>& operation) {
  if (messages_.in_background(operation, true)) poll_messages_later();
}

void Communicator::poll_messages_later() {
  active_.store(true, std::memory_order_relaxed);
  // Against keep_watching(): this call's work was counted before this exchange, and the progress
  // thread looks for work after it has let go. Against a progress thread that becomes busy:
  // ProgressThread::busy().
  const bool watched = watched_.exchange(true, std::memory_order_seq_cst);
  try {
    if (!watched) {
      progress_thread_.watch(
          shared_from_this());  // even if it is busy: the mark means that it watches
    } else if (progress_thread_.busy()) {
      progress_thread_.add(shared_from_this());
    }
  } catch (const Error& error) {  // no thread: the peers must not wait for this rank
    give_up({error.code(), -1, where({"none", sequence_}, -1) + error.what()});
  }
}

bool Communicator::take_back(const std::shared_ptr<PeerOperation>& operation) {
  const bool taken = messages_.take_back(operation) && operation->was_taken_back();
  messages_.deliver();
  return taken;
}

bool Communicator::take_elsewhere() {
  const bool all = messages_.take_elsewhere();
  tell_mismatch();
  messages_.deliver();
  return all;
}

void Communicator::cancel(const std::shared_ptr<PeerOperation>& operation) {
  if (operation->done() || forked_from_endpoint()) return;
  if (!messages_.take_back(operation) && !operation->done()) {
    abort(concat("rank ", peers_->number_of(rank()), " aborted ", operation->describe()));
  }
  messages_.deliver();
}

void Communicator::tell_mismatch() {
  const auto found = messages_.take_mismatch();
  if (!found) return;
  give_up({ErrorCode::kMismatch, found->peer,
           where({"recv", sequence_}, found->peer) + "a message does not fit its receive: " +
               found->text + ". No memory was touched. Make both sides name equal sizes and dtypes",
           found->text});
}

bool Communicator::keep_watching() {
  const auto now = Clock::now();
  if (active_.exchange(false, std::memory_order_relaxed)) idle_since_ = now;
  if (now - idle_since_ < kForget) return true;
  watched_.store(false, std::memory_order_seq_cst);
  return messages_.any_background() && !watched_.exchange(true, std::memory_order_seq_cst);
}

bool Communicator::poll_messages() {
  if (!messages_.busy()) return false;
  const bool moved = messages_.poll();
  tell_mismatch();
  messages_.deliver();
  return moved;
}

void Communicator::wait(PeerOperation& operation, Milliseconds timeout, Deadline deadline,
                        const std::function<void()>& interrupted) {
  struct Waiting {
    explicit Waiting(Communicator& group) : group(group) { group.messages_.begin_waiting(); }
    ~Waiting() {
      // The progress thread kept away while this thread was driving: the rest is its job again.
      if (group.messages_.end_waiting()) group.poll_messages_later();
    }
    Communicator& group;
  };
  if (operation.done()) return;
  const Waiting waiting(*this);
  wait_until_done(operation, timeout, deadline, interrupted);
}

void Communicator::wait_until_done(PeerOperation& operation, Milliseconds timeout,
                                   Deadline deadline, const std::function<void()>& interrupted) {
  const PeerCall& call = operation.call();
  const auto start = Clock::now();
  const Deadline limit = deadline_after(timeout, start);
  auto looked_around = start, asked = start;
  WaitWarning warning(start);
  const auto check = [&] {
    looked_around = Clock::now();
    examine();
    if (operation.done()) return;
    ask(interrupted, asked, operation);
    const Subject subject{call.name(), sequence_};
    warning.look(looked_around, label_, [&](Clock::duration so_far) {
      return where(subject, call.peer) +
             concat(operation.describe(), " ", waited(so_far), ": ",
                    messages_.progress_of(operation), ". Look what the peer is doing; ",
                    limit == Deadline::max() ? "there is no timeout"
                                             : concat("the timeout is ", timeout.count(), " ms"));
    });
    if (looked_around > limit) {
      const std::string what = concat(operation.describe(), " did not end within ", timeout.count(),
                                      " ms: ", messages_.progress_of(operation));
      give_up(
          {ErrorCode::kTimeout, call.peer,
           where(subject, call.peer) + what + ". Look what the peer is doing, or raise timeout=",
           what});
    } else if (looked_around > deadline) {
      throw Error(ErrorCode::kTimeout, where(subject, call.peer) + operation.describe() +
                                           ": wait() reached its timeout; the operation goes on");
    }
  };
  const auto crowded = [&] {
    return call.peer >= 0 && peers_->control_block(call.peer).cpu.load(std::memory_order_relaxed) ==
                                 peers_->own_control_block().cpu.load(std::memory_order_relaxed);
  };
  peers_->own_control_block().note_cpu();
  // Each pause has its own bounds; a long message goes through many.
  bool moved = false;
  const auto ready = [&] {
    if (operation.done()) return true;
    moved = poll_messages();
    return moved || operation.done();
  };
  while (!operation.done()) {
    if (!ready()) {
      spin_for(policy_.spin, ready, crowded);
      if (!moved && !operation.done()) {
        wait_until(policy_, peers_->own_doorbell(), ready, check, crowded);
      }
    }
    if (Clock::now() - looked_around > kLookAround) check();
  }
}

void Communicator::examine_messages() {
  // All of it is read before waits_for() looks at the rings.
  int dead = -1, poisoned = -1;
  uint64_t gone = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Signs seen = signs_of(peer);
    if (seen.gave_up) {
      if (poisoned < 0) poisoned = peer;
    } else if (seen.left) {
      gone |= uint64_t{1} << peer;
    } else if (seen.died && dead < 0) {
      dead = peer;
    }
  }
  if (dead < 0 && poisoned < 0 && gone == 0) return;
  const auto waiting = messages_.waits_for(dead < 0 && poisoned < 0 ? gone : ~uint64_t{0});
  if (waiting) {
    const Subject subject{waiting->call.name(), sequence_};
    if (poisoned >= 0) {
      give_up(told_by(poisoned, subject));
    } else if (dead >= 0) {
      give_up(death_of(dead, subject));
    } else if (waiting->peer < 0) {
      give_up(departure_of_all(subject));
    } else {
      give_up(departure_of(waiting->peer, subject,
                           waiting->call.is_send ? " and did not receive this message"
                                                 : " and did not send this message"));
    }
  }
  poll_messages();
}

}  // namespace fastcomm
