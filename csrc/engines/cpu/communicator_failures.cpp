// Failures of a group of ranks: the signs that it cannot go on, the rank to blame, and the ranks to
// tell.
#include <thread>

#include "core/control.h"
#include "engines/cpu/communicator.h"
#include "transport/fork.h"

namespace fastcomm {
std::string message_front(int rank, int size, int peer, const char* operation, uint64_t sequence) {
  const std::string blamed = peer < 0 ? "" : concat("peer ", peer, ", ");
  return concat("[rank ", rank, " of ", size, ", ", blamed, operation, ", sequence ", sequence,
                "] ");
}

std::string without_front(const std::string& text) {
  const size_t end = text.find("] ");
  return text.rfind("[rank ", 0) == 0 && end != std::string::npos ? text.substr(end + 2) : text;
}

std::exception_ptr come_after(ErrorCode code, const std::string& text, const char* operation) {
  // The front stays: the exception's attributes are about the operation that failed.
  const size_t end = text.find("] "), front = end == std::string::npos ? 0 : end + 2;
  return std::make_exception_ptr(
      Error(code, concat(text.substr(0, front), "this call of ", operation,
                         " comes after the process group has failed, which cannot be used any "
                         "more: destroy it and create a new one. It failed in the operation named "
                         "in front: ",
                         text.substr(front))));
}

Communicator::Subject::Subject(const Operation& operation)
    : name(op_kind_name(static_cast<OpKind>(operation.header().kind))),
      sequence(operation.header().sequence) {}

std::string Communicator::where(const Subject& subject, int peer) const {
  return message_front(peers_->number_of(rank()), peers_->whole_size(),
                       peer < 0 ? peer : peers_->number_of(peer), subject.name, subject.sequence);
}

void Communicator::examine() {
  Finished finished;
  bool goes_on = false;
  if (std::unique_lock<std::mutex> driving(drive_, std::try_to_lock); driving) {
    if (auto operation = head()) {
      if (const auto found = failure_of(*operation)) {
        fail(*found, finished);
      } else {
        goes_on = operation->awaited_peer() < 0;
        if (!goes_on) warn_of_wait(*operation);
      }
    }
  }
  finish(finished);
  if (goes_on) {  // it ends well, or finds the fault itself and can tell more than a peer
    poll();
  } else if (messages_.busy()) {
    examine_messages();
  }
}

std::optional<Communicator::Failure> Communicator::failure_of(const Operation& operation) const {
  auto found = evidence(operation);
  if (!found) found = overdue(operation);
  // First the evidence, then the flags: all that a peer published before it gave up, left or died
  // is seen here. An operation that waits for nobody goes on in any case: it ends well, or finds by
  // itself the fault that a faster peer has found (a mismatch).
  if (found && operation.awaited_peer() < 0) found.reset();
  return found;
}

Communicator::Failure Communicator::death_of(int peer, const Subject& subject) const {
  return Failure{ErrorCode::kPeerLost, peer,
                 where(subject, peer) +
                     concat(peers_->describe(peer),
                            " died. Look at its own output for the cause; this process group "
                            "cannot be used any more")};
}

Communicator::Failure Communicator::departure_of(int peer, const Subject& subject,
                                                 const std::string& what) const {
  const ControlBlock& control = peers_->control_block(peer);
  const char* hint = control.reason[0] == '\0' ? "" : ". Look at its own output";
  return Failure{
      ErrorCode::kPeerLeft, peer,
      where(subject, peer) + concat(peers_->describe(peer), " ", control.leave_text(), what, hint)};
}

Communicator::Failure Communicator::departure_of_all(const Subject& subject) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && peers_->control_block(peer).reason[0] != '\0') {
      return departure_of(peer, subject, ", and all other ranks have left: none sent this message");
    }
  }
  return Failure{ErrorCode::kPeerLeft, -1,
                 where(subject, -1) +
                     "all other ranks destroyed their process groups, and none sent this message"};
}

Communicator::Failure Communicator::departure_before_end(int peer, const Subject& subject) const {
  const uint64_t ended = peers_->control_block(peer).left.load(std::memory_order_acquire) - 1;
  const bool called = reached(load_flag(peers_->view().flags[peer]), base_ + 1);
  return departure_of(
      peer, subject,
      concat(" after ", ended, ended == 1 ? " operation" : " operations", "; this one ",
             called ? "had not ended there" : "was never called there"));
}

Communicator::Signs Communicator::signs_of(int peer) const {
  // A rank gives up, announces that it leaves, and ends, in this order. The reads go in reverse
  // order: if one of these is seen, so is all that came before it, even if much happens between two
  // of these loads.
  const ControlBlock& control = peers_->control_block(peer);
  const bool lost = peers_->lost(peer);
  const bool left = control.left.load(std::memory_order_acquire) != 0;
  const bool gave_up = control.poisoned.load(std::memory_order_acquire) != 0;
  return {gave_up, left, lost && !left};
}

std::optional<Communicator::Failure> Communicator::evidence(const Operation& operation) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Signs seen = signs_of(peer);
    // Judged first: the leave notice and death may follow from it and tell less.
    if (seen.gave_up) {
      const uint64_t first_failed = peers_->control_block(peer).first_failed;
      if (operation.header().sequence >= first_failed) return told_by(peer, operation);
      continue;  // it has done its part of this operation
    }
    if (seen.left && operation.awaits(peer)) return departure_before_end(peer, operation);
    if (seen.died) return death_of(peer, operation);
  }
  return std::nullopt;
}

// Tells if the group was given up before this operation did anything: a rank that comes late may
// find every flag that it needs, from peers that wait no longer. "Before" is the order that a user
// can know: a peer's error was raised, then this call was made.
//
// fail() publishes the poison (release) and passes a full fence (wake_peers) before any error is
// raised, so the mark is visible by then, not in a store buffer. The look cannot move before the
// call: each of its loads comes after a lock that the call took, an acquire: state_ when it was
// queued, or drive_ if it is short.
// If the user has ordered the two (through a store, a pipe), the mark happens before the look, and
// coherence alone makes the look see it, since the mark never goes back. The look comes before the
// first step, which publishes that this rank is there: from then on a peer may give up or go on,
// and the next operation's look decides. The peers' flags prove nothing either way: they were
// published before the mark, so a load of it that follows an acquire of them need not see it.
std::optional<Communicator::Failure> Communicator::given_up_before(const Subject& subject,
                                                                   int* who_left) const {
  if (FC_LEFT_OUT(Control::kNoFirstLook)) return std::nullopt;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Signs seen = signs_of(peer);
    if (seen.gave_up || seen.died) return blame(subject, 0);
    if (seen.left && who_left != nullptr && *who_left < 0) *who_left = peer;
  }
  return std::nullopt;
}

// A peer has ended no operation that this rank has not begun. So a peer that left in good order had
// not ended this one.
std::optional<Communicator::Failure> Communicator::given_up_before(
    const Operation& operation) const {
  int who_left = -1;
  auto found = given_up_before(Subject(operation), &who_left);
  return found || who_left < 0 ? found : departure_before_end(who_left, operation);
}

bool Communicator::is_in_trouble() const {
  {
    std::lock_guard<std::mutex> lock(state_);
    if (first_failure_) return true;
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Signs seen = signs_of(peer);  // acquires what the peer had done before
    if (seen.gave_up || seen.died) return true;
  }
  return false;
}

std::exception_ptr Communicator::failure_before(const char* name) {
  const auto known = failure();
  if (known != nullptr) return known;
  const auto before = given_up_before(Subject{name, sequence_});
  return before ? give_up(*before) : nullptr;
}

std::optional<Communicator::Failure> Communicator::overdue(const Operation& operation) const {
  const auto now = Clock::now();
  std::shared_ptr<Operation> late;  // not always the head: each has a timeout of its own
  {
    std::lock_guard<std::mutex> lock(state_);
    for (const auto& queued : queue_) {
      if (now > queued->deadline()) {
        late = queued;
        break;
      }
    }
  }
  if (late == nullptr) return std::nullopt;
  const std::vector<int> peers = operation.late();
  const int peer = peers.empty() ? -1 : peers.front();
  return Failure{ErrorCode::kTimeout, peer,
                 where(*late, peer) + concat(timed_out(late->timeout()), "; ",
                                             missing_in(*late, operation, peers),
                                             ". See what they are doing, or raise timeout=")};
}

std::string Communicator::missing_in(const Operation& late, const Operation& head,
                                     const std::vector<int>& peers) const {
  // The names come first: a control block has little room for the text, and calls may be long.
  std::string names, progress;
  for (const int peer : peers) {
    names += concat(names.empty() ? "" : ", ", peers_->describe(peer));
    progress += concat("; ", head.progress_of(peer));
  }
  const std::string behind = &late == &head ? "" : concat(", queued after ", head.describe());
  return concat("not arrived: ", names, ". The call: ", late.describe(), behind, progress);
}

void Communicator::warn_of_wait(const Operation& operation) {
  if (peers_->whole_size() != size()) return;  // whoever waits for the larger group warns
  const uint64_t sequence = operation.header().sequence;
  if (sequence < warned_before_) return;
  // A long operation whose steps go on is slow, not stuck: each step has its own time.
  const uint32_t step = operation.step();
  if (!standstill_ || standstill_->sequence != sequence || standstill_->step != step) {
    standstill_.emplace(sequence, step);
    return;
  }
  standstill_->warning.look(Clock::now(), label_, [&](Clock::duration so_far) {
    warned_before_ = sequence + 1;
    const std::vector<int> peers = operation.late();
    const int64_t limit = operation.timeout().count();
    return where(operation, peers.empty() ? -1 : peers.front()) +
           concat(waited(so_far), "; ", missing_in(operation, operation, peers),
                  ". See what they are doing; ",
                  limit <= 0 ? "there is no timeout" : concat("the timeout is ", limit, " ms"));
  });
}

Communicator::Failure Communicator::told_by(int peer, const Subject& subject) const {
  const ControlBlock& control = peers_->control_block(peer);
  const ErrorCode cause = as_told(static_cast<ErrorCode>(control.cause));
  int blamed = control.blamed;
  // A peer that another rank told passes the blame on.
  if (cause == ErrorCode::kPoisoned && blamed < 0) blamed = peer;
  return {cause, blamed,
          where(subject, blamed) +
              concat(peers_->describe(peer), " gave the group up: ", control.reason),
          control.reason, /*told=*/true};
}

void Communicator::fail(const Failure& failure, Finished& finished) {
  std::lock_guard<std::mutex> lock(state_);
  if (failure_ == nullptr) {
    failure_ = std::make_exception_ptr(Error(failure.code, failure.text));
    first_failure_ = failure;
    to_spread_.store(true, std::memory_order_relaxed);
    peers_->own_control_block().poison(
        static_cast<uint32_t>(failure.code), failure.peer, sequence_ - queue_.size(),
        (failure.cause.empty() ? failure.text : failure.cause).c_str());
    peers_->wake_peers();
  }
  give_up_queue(finished);
  messages_.stop(failure_);
}

std::exception_ptr Communicator::failed_before(const char* name) const {
  if (!first_failure_) return failure_;  // it was left in order
  return come_after(first_failure_->code, first_failure_->text, name);
}

void Communicator::share_fate(const std::shared_ptr<Communicator>& one,
                              const std::shared_ptr<Communicator>& other) {
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
    std::lock_guard<std::mutex> lock(from->state_);
    from->companions_.push_back(to);
    if (from->first_failure_) from->to_spread_.store(true, std::memory_order_relaxed);
  }
  one->spread_failure();
  other->spread_failure();
}

void Communicator::spread_failure() {
  if (!to_spread_.exchange(false)) return;
  std::vector<std::weak_ptr<Communicator>> companions;
  std::optional<Failure> failure;
  {
    std::lock_guard<std::mutex> lock(state_);
    companions = companions_;
    failure = first_failure_;
  }
  for (const auto& known : companions) {
    const auto companion = known.lock();
    if (companion != nullptr && companion->failure() == nullptr) {
      companion->give_up(*failure);
    }
  }
}

void Communicator::give_up_queue(Finished& finished) {
  for (auto& operation : queue_) {
    operation->quarantine();
    finished.emplace_back(std::move(operation), failure_);
  }
  queue_.clear();
  queued_.store(0, std::memory_order_relaxed);
}

std::exception_ptr Communicator::failed(const char* name, ErrorCode code, const std::string& what,
                                        int peer, std::optional<uint64_t> number) {
  const Subject subject{name, number.value_or(sequence_)};
  const auto until = Clock::now() + Milliseconds(100);
  auto found = blame(subject);
  while (!found && code == ErrorCode::kSystem && Clock::now() < until) {
    std::this_thread::sleep_for(Milliseconds(1));
    found = blame(subject);
  }
  return give_up(found ? *found : Failure{code, peer, where(subject, peer) + what});
}

void Communicator::abort(const std::string& why) {
  if (forked_from_endpoint()) return;
  const Subject subject{"none", sequence_};
  give_up({ErrorCode::kPoisoned, -1, where(subject, -1) + why});
}

std::optional<Communicator::Blame> Communicator::blame() const {
  std::lock_guard<std::mutex> lock(state_);
  if (!first_failure_) return std::nullopt;
  const int peer = first_failure_->peer;
  return Blame{first_failure_->code, peer < 0 ? peer : peers_->number_of(peer),
               first_failure_->told, without_front(first_failure_->text)};
}

std::exception_ptr Communicator::failure() const {
  std::lock_guard<std::mutex> lock(state_);
  return failure_;
}

std::exception_ptr Communicator::give_up(const Failure& failure) {
  Finished finished;
  {
    std::lock_guard<std::mutex> driving(drive_);
    fail(failure, finished);
  }
  finish(finished);
  return std::make_exception_ptr(Error(failure.code, failure.text));
}

std::optional<Communicator::Failure> Communicator::blame(const Subject& subject,
                                                         uint64_t leavers) const {
  std::optional<Failure> gone, messenger;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Signs seen = signs_of(peer);
    if (seen.died) return death_of(peer, subject);
    if (seen.gave_up) {  // also one that left after that
      messenger = told_by(peer, subject);
    } else if (seen.left && (leavers >> peer & 1) != 0) {
      gone = departure_of(peer, subject, "");
    }
  }
  return gone ? gone : messenger;
}

std::exception_ptr Communicator::stalled(const char* name, std::optional<Deadline>& since,
                                         uint64_t leavers, std::optional<uint64_t> number) {
  constexpr Milliseconds kGrace{500};
  const auto found = blame({name, number.value_or(sequence_)}, leavers);
  if (!found) return nullptr;
  const auto now = Clock::now();
  if (!since) since = now;
  return now - *since < kGrace ? nullptr : give_up(*found);
}

}  // namespace fastcomm
