// What a group does around a stock engine: the meetings before it starts, the operations that are open
// while it works, and its failures.
#include <thread>

#include "coll/communicator.h"
#include "core/control.h"
#include "core/error.h"

namespace fastcomm {
namespace {

/// How long a stock engine's error may come before the kernel tells of the death that caused it.
constexpr Milliseconds kDeathGrace{100};

/// How long a stock engine may go on where somebody has died or failed: what they had sent may be
/// enough for it, and mostly it finds out by itself.
constexpr Milliseconds kEngineGrace{500};

}  // namespace

std::shared_ptr<Operation> Communicator::meet(const Call& call, Milliseconds timeout, bool async,
                                              const std::function<void()>& interrupted,
                                              Operation::OnFinish on_met,
                                              Operation::OnFinish on_lost) {
  auto operation = admit(call, timeout, std::move(on_met), std::move(on_lost));
  if (async) {
    drive_later(operation);
  } else {
    drive_to_end(operation, interrupted);
  }
  return operation;
}

void Communicator::end_meetings() {
  std::unique_lock<std::mutex> lock(state_);
  // That thread, maybe this one further up, ends all of them.
  if (ending_meetings_ && !FC_LEFT_OUT(Control::kMeetingsOutOfTurn)) return;
  ending_meetings_ = true;
  while (!met_.empty()) {
    const auto operation = std::move(met_.front());
    met_.pop_front();
    lock.unlock();
    operation->finish(nullptr);
    lock.lock();
  }
  any_met_.store(false, std::memory_order_relaxed);
  ending_meetings_ = false;
}

void Communicator::close(const Operation& operation) {
  std::shared_ptr<Operation> held;  // what on_lost holds goes outside of the lock
  Operation::OnFinish on_lost;
  {
    std::lock_guard<std::mutex> lock(state_);
    const auto found = open_.find(operation.header().sequence);
    if (found == open_.end()) return;
    held = std::move(found->second);
    if (!held->lost) {
      on_lost = std::move(held->on_lost);
      held->on_lost = nullptr;
    }
    open_.erase(found);
  }
}

void Communicator::refuse(const Operation& operation) {
  close(operation);
  // Release, as every notice of a pad; nothing but the number itself is read behind it.
  peers_->own_pad().refused.store(operation.header().sequence + 1, std::memory_order_release);
  peers_->wake_peers();
}

bool Communicator::engine_at_work() const {
  std::lock_guard<std::mutex> lock(state_);
  return !open_.empty();
}

std::optional<Communicator::Trouble> Communicator::open_trouble(const Operation& operation) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Pad& pad = peers_->pad(peer);
    if (pad.poisoned.load(std::memory_order_acquire) != 0) {
      const uint64_t sequence = operation.header().sequence;
      const uint64_t lost = pad.engine_lost.load(std::memory_order_acquire);
      if (sequence >= pad.first_failed || (lost != 0 && sequence + 1 >= lost)) {
        return told_by(peer, operation);
      }
    }
    if (pad.refused.load(std::memory_order_acquire) == operation.header().sequence + 1) {
      return Trouble{
          ErrorCode::kPoisoned, peer,
          where(operation, peer) + concat("Gloo refused the call of ", peers_->describe(peer),
                                          ", though not this one; its own error there "
                                          "says why")};
    }
  }
  return std::nullopt;
}

std::optional<Communicator::Trouble> Communicator::blame(const Subject& subject, int leaver,
                                                         const Operation* open) const {
  // Read before what is judged first, as in evidence(). Who failed later and left is a messenger.
  int dead = -1, gone = -1, messenger = -1;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Pad& pad = peers_->pad(peer);
    const bool lost = peers_->lost(peer);
    const bool said_goodbye = pad.goodbye.load(std::memory_order_acquire) != 0;
    const bool failed = pad.poisoned.load(std::memory_order_acquire) != 0;
    if (failed) messenger = peer;
    if (said_goodbye && !failed && (leaver == peer || leaver == kAnybody)) gone = peer;
    if (lost && !said_goodbye) dead = peer;
  }
  if (open != nullptr) {
    if (auto found = open_trouble(*open)) return found;
  }
  if (dead >= 0) return death_of(dead, subject);
  if (gone >= 0) {
    return departure_of(gone, subject, " while Gloo was at work here");
  }
  if (messenger >= 0) return told_by(messenger, subject);
  return std::nullopt;
}

Communicator::Trouble Communicator::blame_for_failure(const Subject& subject, int leaver,
                                                      const Operation* open, ErrorCode code,
                                                      int peer, const std::string& what) const {
  const auto until = Clock::now() + kDeathGrace;
  auto found = blame(subject, kNobody, open);
  while (!found && code == ErrorCode::kSystem && Clock::now() < until) {
    std::this_thread::sleep_for(Milliseconds(1));
    found = blame(subject, kNobody, open);
  }
  // Somebody may have left meanwhile, in good order: that counts last.
  if (!found && code == ErrorCode::kSystem) found = blame(subject, leaver, open);
  return found ? *found : Trouble{code, peer, where(subject, peer) + what};
}

std::optional<Communicator::Trouble> Communicator::stalled(Operation& operation) const {
  return outlasted(blame(operation, kNobody, &operation), operation.stalled_since);
}

std::optional<Communicator::Trouble> Communicator::outlasted(std::optional<Trouble> found,
                                                             std::optional<Deadline>& since) const {
  if (!found) {
    std::lock_guard<std::mutex> lock(state_);
    found = first_trouble_;
  }
  if (!found) return std::nullopt;
  const auto now = Clock::now();
  if (!since) since = now;
  if (now - *since < kEngineGrace) return std::nullopt;
  return found;
}

std::exception_ptr Communicator::engine_failed(const Operation& operation, ErrorCode code,
                                               const std::string& what) {
  close(operation);
  return give_up(blame_for_failure(operation, kAnybody, &operation, code, -1, what),
                 operation.header().sequence);
}

std::exception_ptr Communicator::failure() const {
  std::lock_guard<std::mutex> lock(state_);
  return failure_;
}

std::exception_ptr Communicator::exchange_stalled(const char* name, std::optional<Deadline>& since,
                                                  bool leaver) {
  const Subject subject{name, sequence_};
  const auto found = outlasted(blame(subject, leaver ? kAnybody : kNobody, nullptr), since);
  return found ? give_up(*found, std::nullopt) : nullptr;
}

std::exception_ptr Communicator::exchange_failed(const char* name, int peer, ErrorCode code,
                                                 const std::string& what) {
  const int leaver = peer < 0 ? kAnybody : peer;
  return give_up(blame_for_failure({name, sequence_}, leaver, nullptr, code, peer, what),
                 std::nullopt);
}

std::exception_ptr Communicator::give_up(const Trouble& trouble, std::optional<uint64_t> first) {
  Finished finished;
  {
    std::lock_guard<std::mutex> driving(drive_);
    fail(trouble, finished, first);
  }
  finish(finished);
  return std::make_exception_ptr(Error(trouble.code, trouble.text));
}

void Communicator::abandon(const Operation& operation, const std::string& why) {
  give_up({ErrorCode::kPoisoned, -1, where(operation, -1) + why}, operation.header().sequence);
}

}  // namespace fastcomm
