// A group of ranks at work: the order of its operations, the threads that drive them, and its end.
//
// Three verbs, here and below: wait (until an operation is done: polls, yields, sleeps), poll (run
// the steps for which the peers are there; never waits), step (the part of a schedule between two
// waits).
//
// Operations of a group run one after the other, in the order in which they were issued. Any thread
// with time drives the first of them: the caller of a synchronous operation, a caller in wait(), or
// the progress thread. Two locks, never held together except in this order:
//   drive_  its holder drives; only it polls an operation. Nobody waits for it while another
//           drives: all look again later. Only leave() and abort() wait, for the running step: when
//           they return, nothing touches the memory of an operation any more
//   state_  the queue, the counters, the failure; held for moments only
// The lock of the sends and receives (point_to_point.h) comes after both. Completion runs outside
// of all.
//
// Thread-safe. On every rank the operations must be issued in the same order.
#pragma once

#include <array>
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
#include "engines/cpu/short_calls.h"
#include "transport/wait.h"

namespace fastcomm {

class Communicator final : public Driven, public std::enable_shared_from_this<Communicator> {
 public:
  /// `progress_thread` drives asynchronous operations and outlives the communicator.
  Communicator(std::unique_ptr<Transport> peers, GroupTraits traits,
               ProgressThread& progress_thread);
  ~Communicator() override;

  const GroupTraits& traits() const { return traits_; }
  /// Lives as long as this object.
  const Transport& transport() const { return *peers_; }
  int rank() const { return peers_->rank(); }
  int size() const { return peers_->size(); }
  /// Start of this group's warnings: "[rank0]: fastcomm: group '2': ". Set before the first
  /// operation.
  void set_label(std::string label) { label_ = std::move(label); }
  const std::string& label() const { return label_; }
  /// Operations issued so far.
  uint64_t sequence() const { return sequence_; }

  /// Runs after all pending operations, in the calling thread. `interrupted`, if given, is called
  /// now and then while waiting and may throw: then the group is given up, since the peers cannot
  /// finish without this rank. The operation holds its error, if any; short calls that end well
  /// share one, which tells no more than that.
  std::shared_ptr<Operation> run(const Call& call, Milliseconds timeout,
                                 const std::function<void()>& interrupted);
  /// The same of a call by its parts, which tells `record`.
  std::shared_ptr<Operation> run(const ShortCall& call, const CallRecord& record,
                                 Milliseconds timeout, const std::function<void()>& interrupted);

  /// Starts and returns at once; `on_finish` runs once, on the thread that completes the operation,
  /// possibly this one before start() returns.
  std::shared_ptr<Operation> start(const Call& call, Milliseconds timeout,
                                   Operation::OnFinish on_finish);

  /// The reason why the group can no longer be used; nullptr while it can.
  std::exception_ptr failure() const;
  /// The same in parts; nothing if it was merely left.
  struct Blame {
    ErrorCode code;
    int peer;          // the rank at fault, by its number in messages, or -1
    bool told;         // by a peer
    std::string text;  // without the operation in front
  };
  std::optional<Blame> blame() const;
  /// True once the group was given up here or by a peer, or a peer has died; not because it was
  /// left. Changes nothing.
  bool is_in_trouble() const;
  /// The same as failure() for a call, `name`, that this object does not carry out. It sees a
  /// peer's failure or death that was raised before the call (given_up_before).
  std::exception_ptr failure_before(const char* name);
  /// For joint work of the ranks outside of an operation, `name`: gives the group up and returns
  /// the reason, once a needed rank has been gone, dead or failed for a while, since `since`. The
  /// delay is there because that rank's earlier work may be enough. Of ranks that left in order
  /// only `leavers` count, by bits. Here and below messages show `number` if such work is counted
  /// apart from this group's operations.
  std::exception_ptr stalled(const char* name, std::optional<Deadline>& since,
                             uint64_t leavers = ~uint64_t{0},
                             std::optional<uint64_t> number = std::nullopt);
  /// Gives the group up because `name` has failed by the fault of `peer`, and returns the reason. A
  /// peer that died is to blame, even if `what` blames another, so the kernel gets some time to
  /// report the death.
  std::exception_ptr failed(const char* name, ErrorCode code, const std::string& what,
                            int peer = -1, std::optional<uint64_t> number = std::nullopt);

  /// Helps until `operation` is done. Raises Error(kTimeout) at `deadline`, which harms nothing.
  /// `interrupted` as in run().
  void wait(Operation& operation, Deadline deadline, const std::function<void()>& interrupted);

  /// Sends and receives have an order of their own: by pair of ranks and tag. They start at once
  /// and never block; `on_finish` as in start(). If the group has failed they raise the reason.
  /// nullptr for a send that has to go another way.
  std::shared_ptr<PeerOperation> post(const PeerCall& call, PeerOperation::OnFinish on_finish);
  /// As the other wait(). The group's `timeout` counts from here: an early post may be followed by
  /// a late wait.
  void wait(PeerOperation& operation, Milliseconds timeout, Deadline deadline,
            const std::function<void()>& interrupted);
  /// Lets it go on by itself, with or without a waiter, if post() has not done so.
  void in_background(const std::shared_ptr<PeerOperation>& operation);
  /// Takes it back, without a sound; false if it has ended, or a peer knows of it.
  bool take_back(const std::shared_ptr<PeerOperation>& operation);
  /// Takes it back; if a peer knows of it already, the group is given up.
  void cancel(const std::shared_ptr<PeerOperation>& operation);
  /// From the first call on this rank gets messages by another way: to a peer that sends with
  /// PeerCall::two_ways, post() returns nullptr. True once all that were sent before are here: then
  /// a receive that takes none of them, and can be taken back, has to go the other way. Else call
  /// it again; it waits for nobody.
  bool take_elsewhere();
  bool keep_watching() override;
  /// The same for sends and receives alone.
  bool poll_messages();

  bool poll(Clock::duration spin = Clock::duration::zero()) override;
  void examine() override;
  bool pending() const override;

  /// Announces that this rank leaves: peers finish the operations that this rank has taken part in,
  /// and get Error(kPeerLeft) for later ones. Pending operations end in an error. `how` tells peers
  /// the cause, unless the group was just destroyed: "failed with ValueError: ...". Idempotent;
  /// waits for no peer.
  void leave(const std::string& how = "");
  /// A function that is true if every peer has left the group, or is dead. It may outlive this
  /// object.
  std::function<bool()> peers_are_gone() const { return peers_->peers_are_gone(); }
  /// Gives the group up: pending operations end in an error here and on every peer.
  void abort(const std::string& why);
  /// Ties two communicators of the same ranks: when one fails, the other is given up for the same
  /// reason; at once if one has failed already.
  static void share_fate(const std::shared_ptr<Communicator>& one,
                         const std::shared_ptr<Communicator>& other);

 private:
  using Finished = std::vector<std::pair<std::shared_ptr<Operation>, std::exception_ptr>>;

  /// The reason why the group cannot go on.
  struct Failure {
    ErrorCode code;
    int peer;  // the rank at fault, or -1
    std::string text;
    std::string cause = "";  // text for the peers, if another one: a control block is small
    bool told = false;       // by a peer that gave the group up
  };

  /// The subject of a message.
  struct Subject {
    Subject(const Operation& operation);
    Subject(const char* what, uint64_t number) : name(what), sequence(number) {}
    const char* name;
    uint64_t sequence;
  };

  /// An operation of a call: a new one, or an earlier one like it that has ended. With state_.
  std::shared_ptr<Operation> made(const Call& call, uint64_t sequence, Milliseconds timeout,
                                  std::string site);
  std::shared_ptr<Operation> enqueue(const Call& call, Milliseconds timeout,
                                     Operation::OnFinish on_finish);
  std::shared_ptr<Operation> admit(const Call& call, Milliseconds timeout,
                                   Operation::OnFinish on_finish);
  std::shared_ptr<Operation> run_queued(const Call& call, Milliseconds timeout,
                                        const std::function<void()>& interrupted);
  /// Runs a call without an operation, unless it gets late: then one that has ended. nullptr if it
  /// has to go through the queue; then nothing has happened.
  std::shared_ptr<Operation> run_short(const ShortCall& call, const CallRecord& record,
                                       Milliseconds timeout,
                                       const std::function<void()>& interrupted);
  /// The first step of a short call, and the last one if its peers come in time (true). With
  /// drive_.
  bool try_short(const ShortCall& call, const CallRecord& record, uint64_t sequence);
  std::shared_ptr<Operation> head() const;
  bool poll_queue(Finished& finished, Clock::duration spin);
  /// Calls `interrupted`, if given, unless `asked` was a moment ago. Ctrl-C gives the group up,
  /// since the peers cannot finish without this rank.
  template <class AnyOperation>
  void ask(const std::function<void()>& interrupted, Deadline& asked,
           const AnyOperation& operation) {
    if (!interrupted || Clock::now() - asked <= Milliseconds(10)) return;
    try {
      interrupted();
    } catch (...) {
      abort(
          concat("rank ", peers_->number_of(rank()), " was interrupted in ", operation.describe()));
      throw;
    }
    asked = Clock::now();
  }
  /// A wait that began: at its end, be it in an error, the rest is the progress thread's job again.
  struct HandOver {
    explicit HandOver(Communicator& of) : group(of) {}
    ~HandOver();
    HandOver(const HandOver&) = delete;
    HandOver& operator=(const HandOver&) = delete;
    Communicator& group;
  };
  /// The part of wait() after the spin: yields, then sleeps.
  void wait_until_done(Operation& operation, Deadline deadline,
                       const std::function<void()>& interrupted);
  /// Signs of a peer's state.
  struct Signs {
    bool gave_up;
    bool left;
    bool died;  // without having announced that it leaves
  };
  Signs signs_of(int peer) const;
  /// The reason why the operation cannot go on; nothing while nothing is wrong.
  std::optional<Failure> failure_of(const Operation& operation) const;
  std::optional<Failure> evidence(const Operation& operation) const;
  /// A peer that gave the group up or died before a call begins, even if it did its part; and in
  /// `who_left`, if not nullptr, a peer that left in good order.
  std::optional<Failure> given_up_before(const Subject& subject, int* who_left = nullptr) const;
  /// The same for the head of the queue, before its first step; then for a peer that left. Under
  /// drive_.
  std::optional<Failure> given_up_before(const Operation& operation) const;
  /// Failure by a peer that left, seen with acquire; `what` is the text.
  Failure departure_of(int peer, const Subject& subject, const std::string& what) const;
  /// Failure by a peer that left without having ended the head of the queue; under drive_.
  Failure departure_before_end(int peer, const Subject& subject) const;
  /// Failure if all peers have left, seen with acquire, and any of them might have sent the awaited
  /// message: one is to blame only if it did not leave in good order.
  Failure departure_of_all(const Subject& subject) const;
  /// The timeout of a queued operation; `operation` is the head of the queue.
  std::optional<Failure> overdue(const Operation& operation) const;
  /// Text about `late`, which is `head` or waits behind it: "not arrived: rank 1 ...".
  std::string missing_in(const Operation& late, const Operation& head,
                         const std::vector<int>& peers) const;
  /// Warns of the ranks that the operation waits for, once it has stood still for long.
  void warn_of_wait(const Operation& operation);
  /// Failure by a peer that is dead, gone or failed, even if it did its part.
  std::optional<Failure> blame(const Subject& subject, uint64_t leavers = ~uint64_t{0}) const;
  Failure death_of(int peer, const Subject& subject) const;
  /// The failure that a peer that gave the group up tells about.
  Failure told_by(int peer, const Subject& subject) const;
  /// Gives the group up, from the head of the queue on.
  void fail(const Failure& failure, Finished& finished);
  void give_up_queue(Finished& finished);  // with both locks
  /// The error of a call after the failure; with state_.
  std::exception_ptr failed_before(const char* name) const;
  /// fail() and finish(); returns the failure as an exception.
  std::exception_ptr give_up(const Failure& failure);
  void finish(Finished& finished);
  void poll_messages_later();
  void wait_until_done(PeerOperation& operation, Milliseconds timeout, Deadline deadline,
                       const std::function<void()>& interrupted);
  /// Gives the group up for a message that does not fit its receive.
  void tell_mismatch();
  /// Looks for reasons that keep sends and receives from ending.
  void examine_messages();
  /// Gives up the groups that share this one's fate; without locks.
  void spread_failure();
  std::string where(const Subject& subject, int peer) const;
  /// The same of an operation without a row here.
  std::string where(const char* name) const { return where(Subject{name, sequence_}, -1); }

  std::unique_ptr<Transport> peers_;
  GroupTraits traits_;
  ProgressThread& progress_thread_;
  WaitPolicy policy_;
  PointToPoint messages_;
  std::atomic<bool> watched_{false},
      active_{false};      // by the progress thread; since it looked last
  Deadline idle_since_{};  // the progress thread's own

  std::string label_;
  /// Position of the first operation at the last look-around. Only under drive_, which look-arounds
  /// hold.
  struct Standstill {
    Standstill(uint64_t number, uint32_t at) : sequence(number), step(at) {}
    uint64_t sequence;
    uint32_t step;
    WaitWarning warning;
  };
  std::optional<Standstill> standstill_;
  uint64_t warned_before_ = 0;  // of operations before this number; under drive_

  std::mutex drive_;
  ShortCalls short_;                  // under drive_
  std::shared_ptr<Operation> ended_;  // what short calls return; made under drive_, by the first
  mutable std::mutex state_;
  std::deque<std::shared_ptr<Operation>> queue_;
  std::atomic<size_t> queued_{0};                        // its size; written under state_
  std::array<std::shared_ptr<Operation>, 8> earlier_;    // that may be renewed; under state_
  size_t next_earlier_ = 0;                              // the place of the next one
  std::optional<Failure> first_failure_;                 // the failure in failure_
  std::vector<std::weak_ptr<Communicator>> companions_;  // that share this one's fate
  std::atomic<bool> to_spread_{false};                   // it has failed, and they do not know yet
  std::atomic<uint64_t> sequence_{0};  // written under state_, read by messages without
  uint32_t base_ = 0;                  // steps published by operations that are done; under drive_
  std::exception_ptr failure_;
  bool left_ = false;
};

/// "[rank 0 of 2, peer 1, all_reduce, sequence 7]": the start of every message about an operation.
/// fastcomm/errors.py reads it back. `peer` < 0: no peer is to blame.
std::string message_front(int rank, int size, int peer, const char* operation, uint64_t sequence);

/// A text without such a start.
std::string without_front(const std::string& text);

/// The error of a call of `operation` after the group has failed with that code and text.
std::exception_ptr come_after(ErrorCode code, const std::string& text, const char* operation);

}  // namespace fastcomm
