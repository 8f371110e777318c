// A group of ranks at work: the order of its operations, who drives them, and how it ends.
//
// Three verbs, here and below: wait (until an operation is done: polls, yields, sleeps), poll (run the
// steps for which the peers are there; never waits), step (what a schedule does between two waits).
//
// Operations of a group run one after the other, in the order in which they were issued. Whoever
// has time drives the first of them: the caller of a synchronous operation, a caller in wait(), or
// the progress thread. Two locks, never held together but in this order:
//   drive_  who drives; only its holder polls an operation. Nobody waits for it while another
//           drives: all look again later. Only leave() and abort() do, for the step that runs: when
//           they return, nothing touches the memory of an operation any more
//   state_  the queue, the counters, the failure; held for moments only
// and after both, that of the sends and receives (point_to_point.h). Completion runs outside of all.
//
// Thread-safe. On every rank the operations must be issued in the same order.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/wait_warning.h"
#include "engines/cpu/operation.h"
#include "engines/cpu/point_to_point.h"
#include "engines/cpu/progress_thread.h"
#include "transport/wait.h"

namespace fastcomm {

class Communicator final : public Driven, public std::enable_shared_from_this<Communicator> {
 public:
  /// `progress_thread` drives asynchronous operations and outlives the communicator.
  Communicator(std::unique_ptr<Transport> peers, GroupTraits traits,
               ProgressThread& progress_thread);
  ~Communicator() override;

  const GroupTraits& traits() const { return traits_; }
  /// Lives as long as this.
  const Transport& transport() const { return *peers_; }
  int rank() const { return peers_->rank(); }
  int size() const { return peers_->size(); }
  /// What a warning of this group begins with: "[rank0]: fastcomm: group '2': ". Set before the first operation.
  void set_label(std::string label) { label_ = std::move(label); }
  const std::string& label() const { return label_; }
  /// Operations issued so far.
  uint64_t sequence() const { return sequence_; }

  /// Runs after whatever is pending, in the calling thread. `interrupted`, if given, is called now
  /// and then while waiting and may throw: then the group is given up, since the peers cannot finish
  /// without this rank. The operation holds its error, if any.
  std::shared_ptr<Operation> run(const Call& call, Milliseconds timeout,
                                 const std::function<void()>& interrupted);

  /// Starts and returns at once; `on_finish` runs once, on whichever thread completes it, possibly
  /// this one before start() returns.
  std::shared_ptr<Operation> start(const Call& call, Milliseconds timeout,
                                   Operation::OnFinish on_finish);

  /// Why the group can no longer be used; nullptr while it can.
  std::exception_ptr failure() const;
  /// The same for a call, `name`, that this object does not carry out: what a peer has done that gave the group up,
  /// or died, is seen where it was raised before the call (given_up_before).
  std::exception_ptr failure_before(const char* name);
  /// For what ranks do together outside of an operation, `name`: gives the group up and returns why, once a rank
  /// that it needs has been gone, dead or failed for a while, since `since`. What that rank did before may be
  /// enough, so it gets some time. Of those who left in order only `leavers` count, by bits. Here and below messages
  /// say `number` where what is done together is counted apart from this group's operations.
  std::exception_ptr stalled(const char* name, std::optional<Deadline>& since,
                             uint64_t leavers = ~uint64_t{0},
                             std::optional<uint64_t> number = std::nullopt);
  /// Gives the group up because `name` has failed, `peer` being at fault, and returns why: a peer that died is to
  /// blame, whatever `what` says, so the kernel gets some time to report the death.
  std::exception_ptr failed(const char* name, ErrorCode code, const std::string& what,
                            int peer = -1, std::optional<uint64_t> number = std::nullopt);

  /// Helps until `operation` is done. Raises Error(kTimeout) at `deadline`, which harms nothing.
  /// `interrupted` as in run().
  void wait(Operation& operation, Deadline deadline, const std::function<void()>& interrupted);

  /// Sends and receives, which have an order of their own: by pair of ranks and tag. Both start at once
  /// and never block; `on_finish` as in start(). Where the group has failed they raise why.
  std::shared_ptr<PeerOperation> post(const PeerCall& call, PeerOperation::OnFinish on_finish);
  /// As the other wait(). The group's `timeout` counts from here: an early post may be followed by a late wait.
  void wait(PeerOperation& operation, Milliseconds timeout, Deadline deadline,
            const std::function<void()>& interrupted);
  /// Lets it go on by itself, whether anyone waits or not, where post() has not found that needed.
  void in_background(const std::shared_ptr<PeerOperation>& operation);
  /// Takes it back; where a peer knows of it already, the group is given up.
  void cancel(const std::shared_ptr<PeerOperation>& operation);
  bool keep_watching() override;
  /// The same for sends and receives alone.
  bool poll_messages();

  bool poll(Clock::duration spin = Clock::duration::zero()) override;
  void examine() override;
  bool pending() const override;

  /// Announces that this rank leaves: peers finish what this rank has taken part in, and get Error(kPeerLeft) for
  /// anything later. Pending operations end in an error. `how` tells peers what happened, if not just
  /// that the group was destroyed: "failed with ValueError: ...". Idempotent; waits for no peer.
  void leave(const std::string& how = "");
  /// Asks whether every peer has left the group, or is dead. May be asked when this object is gone.
  std::function<bool()> peers_are_gone() const { return peers_->peers_are_gone(); }
  /// Gives the group up: pending operations end in an error here and on every peer.
  void abort(const std::string& why);
  /// Two communicators of the same ranks: from now on, when one fails the other is given up for the same
  /// reason. Where one has failed already, at once.
  static void share_fate(const std::shared_ptr<Communicator>& one,
                         const std::shared_ptr<Communicator>& other);

 private:
  using Finished = std::vector<std::pair<std::shared_ptr<Operation>, std::exception_ptr>>;

  /// Why the group cannot go on.
  struct Failure {
    ErrorCode code;
    int peer;  // the rank at fault, or -1
    std::string text;
    std::string cause = "";  // what to tell the peers, if not the text: a control block is small
  };

  /// What a message is about.
  struct Subject {
    Subject(const Operation& operation);
    Subject(const char* what, uint64_t number) : name(what), sequence(number) {}
    const char* name;
    uint64_t sequence;
  };

  std::shared_ptr<Operation> enqueue(const Call& call, Milliseconds timeout,
                                     Operation::OnFinish on_finish);
  std::shared_ptr<Operation> admit(const Call& call, Milliseconds timeout,
                                   Operation::OnFinish on_finish);
  std::shared_ptr<Operation> head() const;
  bool poll_queue(Finished& finished, Clock::duration spin);
  /// Calls `interrupted`, if given, unless that was a moment ago, at `asked`. Ctrl-C gives the group up, since the
  /// peers cannot finish without this rank.
  template <class AnyOperation>
  void ask(const std::function<void()>& interrupted, Deadline& asked,
           const AnyOperation& operation) {
    if (!interrupted || Clock::now() - asked <= Milliseconds(10)) return;
    try {
      interrupted();
    } catch (...) {
      abort(concat("rank ", rank(), " was interrupted in ", operation.describe()));
      throw;
    }
    asked = Clock::now();
  }
  /// The part of wait() after the spin: yields, then sleeps.
  void wait_until_done(Operation& operation, Deadline deadline,
                       const std::function<void()>& interrupted);
  /// What is seen of a peer.
  struct Signs {
    bool gave_up;
    bool left;
    bool died;  // and had not announced that it leaves
  };
  Signs signs_of(int peer) const;
  /// Why the operation cannot go on; nothing while nothing is wrong.
  std::optional<Failure> failure_of(const Operation& operation) const;
  std::optional<Failure> evidence(const Operation& operation) const;
  /// Who has given the group up or died before a call begins, whatever it had done before; and in
  /// `who_left`, if not nullptr, a peer that left in good order.
  std::optional<Failure> given_up_before(const Subject& subject, int* who_left = nullptr) const;
  /// The same for the head of the queue, before its first step; then who has left. Under drive_.
  std::optional<Failure> given_up_before(const Operation& operation) const;
  /// Who has left, seen with acquire, and `what` that is about.
  Failure departure_of(int peer, const Subject& subject, const std::string& what) const;
  /// Who has left without having ended the head of the queue; under drive_.
  Failure departure_before_end(int peer, const Subject& subject) const;
  /// All peers have left, seen with acquire, and any of them might have sent what is waited for: one is to blame
  /// only if it did not leave in good order.
  Failure departure_of_all(const Subject& subject) const;
  /// The timeout of a queued operation; `operation` is the head of the queue.
  std::optional<Failure> overdue(const Operation& operation) const;
  /// What is said of `late`, which waits behind `head` or is that: "not arrived: rank 1 ...".
  std::string missing_in(const Operation& late, const Operation& head,
                         const std::vector<int>& peers) const;
  /// Says whom the operation waits for, once it has stood still for long.
  void warn_of_wait(const Operation& operation);
  /// Who is dead, gone or failed, whatever it had done before.
  std::optional<Failure> blame(const Subject& subject, uint64_t leavers = ~uint64_t{0}) const;
  Failure death_of(int peer, const Subject& subject) const;
  /// What a peer that gave the group up says about it.
  Failure told_by(int peer, const Subject& subject) const;
  /// Gives the group up, from the head of the queue on.
  void fail(const Failure& failure, Finished& finished);
  void give_up_queue(Finished& finished);  // with both locks
  /// What a call after the failure raises; with state_.
  std::exception_ptr failed_before(const char* name) const;
  /// fail() and finish(); returns the failure as an exception.
  std::exception_ptr give_up(const Failure& failure);
  void finish(Finished& finished);
  void poll_messages_later();
  void wait_until_done(PeerOperation& operation, Milliseconds timeout, Deadline deadline,
                       const std::function<void()>& interrupted);
  /// Gives the group up for a message that does not fit its receive.
  void tell_mismatch();
  /// Looks for what keeps sends and receives from ending.
  void examine_messages();
  /// Gives up the groups that share this one's fate; without locks.
  void spread_failure();
  std::string where(const Subject& subject, int peer) const;

  std::unique_ptr<Transport> peers_;
  GroupTraits traits_;
  ProgressThread& progress_thread_;
  WaitPolicy policy_;
  PointToPoint messages_;
  std::atomic<bool> watched_{false},
      active_{false};      // by the progress thread; since it looked last
  Deadline idle_since_{};  // the progress thread's own

  std::string label_;
  /// Where the first operation stood when somebody looked around. Only under drive_, which look-arounds hold.
  struct Standstill {
    Standstill(uint64_t number, uint32_t at) : sequence(number), step(at) {}
    uint64_t sequence;
    uint32_t step;
    WaitWarning warning;
  };
  std::optional<Standstill> standstill_;
  uint64_t warned_before_ = 0;  // of operations before this number; under drive_

  std::mutex drive_;
  mutable std::mutex state_;
  std::deque<std::shared_ptr<Operation>> queue_;
  std::optional<Failure> first_failure_;                 // what failure_ says
  std::vector<std::weak_ptr<Communicator>> companions_;  // that share this one's fate
  std::atomic<bool> to_spread_{false};  // it has failed, and they have not been told
  std::atomic<uint64_t> sequence_{0};   // written under state_, read by messages without
  uint32_t base_ = 0;                   // steps published by operations that are done; under drive_
  std::exception_ptr failure_;
  bool left_ = false;
};

/// "[rank 0 of 2, peer 1, all_reduce, sequence 7]": the start of every message about an operation.
/// fastcomm/errors.py reads it back. `peer` < 0: no peer is to blame.
std::string message_front(int rank, int size, int peer, const char* operation, uint64_t sequence);

/// What a call of `operation` raises after the group has failed with that code and text.
std::exception_ptr come_after(ErrorCode code, const std::string& text, const char* operation);

}  // namespace fastcomm
