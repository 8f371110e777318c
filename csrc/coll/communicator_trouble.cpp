// How a group of ranks fails: what tells that it cannot go on, who is to blame, and who is told.
#include <thread>

#include "coll/communicator.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// How long a stock engine's error may come before the kernel tells of the death that caused it.
constexpr Milliseconds kDeathGrace{100};

/// How long a stock engine may go on where somebody has died or failed: what they had sent may be
/// enough for it, and mostly it finds out by itself.
constexpr Milliseconds kEngineGrace{500};

}  // namespace

std::string message_front(int rank, int size, int peer, const char* operation, uint64_t sequence) {
  const std::string blamed = peer < 0 ? "" : concat("peer ", peer, ", ");
  return concat("[rank ", rank, " of ", size, ", ", blamed, operation, ", sequence ", sequence,
                "] ");
}

std::string Communicator::where(const Operation& operation, int peer) const {
  return message_front(rank(), size(), peer,
                       op_kind_name(static_cast<OpKind>(operation.header().kind)),
                       operation.header().sequence);
}

void Communicator::examine() {
  Finished finished;
  if (std::unique_lock<std::mutex> driving(drive_, std::try_to_lock); driving) {
    if (auto operation = head()) {
      if (const auto found = trouble(*operation)) fail(*found, finished);
    }
    std::map<uint64_t, std::shared_ptr<Operation>> open;
    {
      std::lock_guard<std::mutex> lock(state_);
      for (const auto& entry : open_) {
        if (!entry.second->lost) open.insert(entry);
      }
    }
    for (const auto& [sequence, operation] : open) {
      auto found = open_trouble(*operation);
      if (!found) found = stalled(*operation);
      if (!found) continue;
      fail(*found, finished, sequence);
      break;
    }
  }
  finish(finished);
}

std::optional<Communicator::Trouble> Communicator::trouble(const Operation& operation) const {
  auto found = evidence(operation);
  if (!found) found = overdue(operation);
  // First the evidence, then the flags: all that a peer published before it gave up, left or died
  // is seen here. An operation that waits for nobody goes on, whatever happened: it ends well, or
  // finds by itself what a faster peer has found (a mismatch).
  if (found && operation.awaited_peer() < 0) found.reset();
  return found;
}

Communicator::Trouble Communicator::death_of(int peer, const Operation& operation) const {
  return Trouble{ErrorCode::kPeerLost, peer,
                 where(operation, peer) +
                     concat(peers_->describe(peer),
                            " died. Look at its own output for the cause; this process group "
                            "cannot be used any more")};
}

std::optional<Communicator::Trouble> Communicator::evidence(const Operation& operation) const {
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
      return Trouble{ErrorCode::kPeerLeft, peer,
                     where(operation, peer) +
                         concat(peers_->describe(peer), " destroyed its process group after ",
                                goodbye - 1, " operations; this one was never called there")};
    }
    // A process that said goodbye and ended did not die on us.
    if (goodbye == 0 && lost) return death_of(peer, operation);
  }
  return std::nullopt;
}

std::optional<Communicator::Trouble> Communicator::overdue(const Operation& operation) const {
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
  std::string missing;
  const std::vector<int> peers = operation.late();
  for (const int peer : peers) {
    missing += concat(missing.empty() ? "" : "; ", operation.progress_of(peer));
  }
  const int peer = peers.empty() ? -1 : peers.front();
  const std::string behind =
      late.get() == &operation ? "" : concat(", behind ", operation.describe());
  return Trouble{ErrorCode::kTimeout, peer,
                 where(*late, peer) + concat(late->describe(), behind, " did not end within ",
                                             late->timeout().count(), " ms; not arrived: ", missing,
                                             ". Look what they are doing, or raise timeout=")};
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
      if (blamed < 0) blamed = peer;  // a peer that was told by another passes the blame on
  }
  return {
      cause, blamed,
      where(operation, blamed) + concat(peers_->describe(peer), " gave the group up: ", pad.reason),
      pad.reason};
}

void Communicator::fail(const Trouble& trouble, Finished& finished, std::optional<uint64_t> first) {
  std::lock_guard<std::mutex> lock(state_);
  const uint64_t from = first.value_or(sequence_ - queue_.size());
  if (first) peers_->own_pad().lose_engine(*first);
  if (failure_ == nullptr) {
    failure_ = std::make_exception_ptr(Error(trouble.code, trouble.text));
    first_trouble_ = trouble;
    peers_->own_pad().poison(static_cast<uint32_t>(trouble.code), trouble.peer, from,
                             (trouble.cause.empty() ? trouble.text : trouble.cause).c_str());
    peers_->wake_peers();
  }
  // Open operations before `from` are the stock engine's: they may still end well.
  for (auto at = open_.lower_bound(from); at != open_.end(); ++at) {
    if (at->second->lost) continue;
    at->second->lost = true;
    finished.emplace_back(at->second, failure_);
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

std::optional<Communicator::Trouble> Communicator::blame(const Operation& operation,
                                                         bool left) const {
  // Read before what is judged first, as in evidence(). Who failed later and left is a messenger.
  int dead = -1, gone = -1, messenger = -1;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Pad& pad = peers_->pad(peer);
    const bool lost = peers_->lost(peer);
    const bool said_goodbye = pad.goodbye.load(std::memory_order_acquire) != 0;
    const bool failed = pad.poisoned.load(std::memory_order_acquire) != 0;
    if (failed) messenger = peer;
    if (said_goodbye && !failed) gone = peer;
    if (lost && !said_goodbye) dead = peer;
  }
  if (auto found = open_trouble(operation)) return found;
  if (dead >= 0) return death_of(dead, operation);
  if (left && gone >= 0) {
    return Trouble{ErrorCode::kPeerLeft, gone,
                   where(operation, gone) +
                       concat(peers_->describe(gone),
                              " destroyed its process group while Gloo was at work here")};
  }
  if (messenger >= 0) return told_by(messenger, operation);
  return std::nullopt;
}

std::optional<Communicator::Trouble> Communicator::stalled(Operation& operation) const {
  auto found = blame(operation, false);
  if (!found) {
    std::lock_guard<std::mutex> lock(state_);
    found = first_trouble_;
  }
  if (!found) return std::nullopt;
  const auto now = Clock::now();
  if (!operation.stalled_since) operation.stalled_since = now;
  if (now - *operation.stalled_since < kEngineGrace) return std::nullopt;
  return found;
}

std::exception_ptr Communicator::engine_failed(const Operation& operation, ErrorCode code,
                                               const std::string& what) {
  close(operation);
  // The engine sees a connection end before the kernel has told of the death. Somebody else may have
  // left meanwhile, in good order: that counts last.
  const auto until = Clock::now() + kDeathGrace;
  auto found = blame(operation, false);
  while (!found && code == ErrorCode::kSystem && Clock::now() < until) {
    std::this_thread::sleep_for(Milliseconds(1));
    found = blame(operation, false);
  }
  if (!found) found = blame(operation, true);
  if (!found) found = Trouble{code, -1, where(operation, -1) + what};
  Finished finished;
  {
    std::lock_guard<std::mutex> driving(drive_);
    fail(*found, finished, operation.header().sequence);
  }
  finish(finished);
  return std::make_exception_ptr(Error(found->code, found->text));
}

void Communicator::abandon(const Operation& operation, const std::string& why) {
  Finished finished;
  {
    std::lock_guard<std::mutex> driving(drive_);
    fail({ErrorCode::kPoisoned, -1, where(operation, -1) + why}, finished,
         operation.header().sequence);
  }
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
