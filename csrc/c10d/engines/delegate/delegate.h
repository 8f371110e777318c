// Another of torch's backends while it serves a group: its failure, and the meaning of its errors.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/error.h"
#include "core/wait_warning.h"
#include "engines/cpu/communicator.h"
#include "transport/tcp/peer_links.h"

namespace fastcomm {

/// The kind of a backend.
struct DelegateKind {
  std::string name;  // for messages: "Gloo"
  /// True if waiting for its works blocks the host until they are done; else it orders streams.
  bool blocks = true;
  /// Ends its operations under way, with any waiters, here and on the peers. Called at most once,
  /// from any thread; returns soon.
  std::function<void(::c10d::Backend&)> end;
};

/// Gloo, if it serves a group as a whole.
DelegateKind gloo_delegate();
/// One for tensors on a device, such as NCCL: its abort() ends what runs.
DelegateKind device_delegate(std::string name);

class Delegate;

/// What serves the group's calls in the host's memory, beside a backend for a device, or for what
/// continuations issue: the two fail together. At most one of both.
struct Beside {
  std::shared_ptr<Communicator> memory;  // which knows the rank to blame, and tells the others
  std::shared_ptr<Delegate> whole;
};

/// Thread-safe.
class Delegate {
 public:
  /// The subject of a message.
  struct Subject {
    const char* operation;
    int peer;  // -1: none
    uint64_t sequence;
    std::string site = "";  // call_site()
  };

  /// Warnings of the group begin with `label`. By `links`, if it has any, the group learns of the
  /// others' ends and failures.
  Delegate(::c10d::Backend& inner, DelegateKind kind, Beside beside, std::string label,
           std::shared_ptr<PeerLinks> links)
      : inner_(&inner),
        kind_(std::move(kind)),
        beside_(std::move(beside)),
        links_(std::move(links)),
        label_(std::move(label)),
        rank_(inner.getRank()),
        size_(inner.getSize()) {}

  const DelegateKind& kind() const { return kind_; }
  const Beside& beside() const { return beside_; }
  const std::string& label() const { return label_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "[rank 0 of 2, peer 1, recv, sequence 7] "
  std::string front(const Subject& subject) const;
  /// The ranks that have not issued a collective, in words; "" where that is not known, or none.
  std::string late_ranks(const Subject& subject) const;
  /// Warns on standard error of an operation that has been waited for, once that has taken long.
  void look_at_wait(WaitWarning& warning, const Subject& subject) const;

  /// The reason why nothing can be submitted any more; nullptr while something can. If what stands
  /// beside it has failed, this has failed from here on, too.
  std::exception_ptr failure();
  /// True if it has failed, not if it was just destroyed.
  bool has_failed() const;
  /// The failure, as a later call of `operation` reports it.
  std::exception_ptr failed_before(const char* operation);
  /// The error of an operation after `error`, which the backend raised. The group has failed from
  /// here on, unless the error is about arguments.
  std::exception_ptr failed(const Subject& subject, const std::exception_ptr& error);
  /// The same for an operation under way, if a test for its end raised `error`: that is never about
  /// arguments, of any type.
  std::exception_ptr lost(const Subject& subject, const std::exception_ptr& error);
  /// The error of an operation that has taken longer than its timeout. The group has failed.
  std::exception_ptr overdue(const Subject& subject, Milliseconds timeout);
  /// The error of an operation that failed among the ranks of this host by another rank's fault, or
  /// as another rank told: `text` says why, and `subject` whose fault it was. The group has failed
  /// from here on.
  std::exception_ptr lost_inside(const Subject& subject, ErrorCode code, const std::string& text);
  /// The failure, if another rank tells of one, or its end is seen, within a moment.
  std::exception_ptr heard_soon();
  /// This rank leaves, and does not finish that many of its calls, from number `first` on: tells
  /// the others.
  void leave_behind(uint64_t calls, uint64_t first);
  /// True if a collective before number `sequence` is under way.
  bool is_behind(uint64_t sequence) const;
  /// Gives the group up here, and ends the operations under way. Returns the first failure: this,
  /// or an earlier one.
  std::exception_ptr give_up(const Subject& subject, ErrorCode code, const std::string& what);
  std::exception_ptr give_up(ErrorCode code, const std::string& text);
  /// Gives the group up because of what the links tell.
  void hear(const Notice& notice);
  /// The same, if a collective under way needs a peer that has left after `issued` of them, and
  /// whose process has dropped the group: Gloo may have nothing that ends it. Not if a message
  /// does: one that nobody waits for may have arrived.
  void departed(int peer, const std::string& how, uint64_t issued);
  /// The same for a message that is waited for and has not arrived; nullptr if the peer is there.
  std::exception_ptr departed_from(const Subject& message);
  /// The same for an operation that needs its peer, or if it names none all of them, and has found
  /// that one does not answer.
  std::exception_ptr without_one_that_left(const Subject& subject);
  /// An operation begins, and has ended: what a failure from elsewhere is about. `fail` ends it,
  /// and may find it gone.
  void begin(const Subject& subject, bool is_message,
             std::function<void(const std::exception_ptr&)> fail);
  void end(const Subject& subject);
  /// Ends operations that are under way long after the group has failed, or at once: Gloo leaves a
  /// send for which the socket had no room until its timeout. False if none can be left.
  bool end_late_ones(bool at_once);
  /// From here on calls report that the group was destroyed, if nothing else.
  void leave(const Subject& subject);
  /// Something of `owner` that a failure ends, too: called once it is known, on any thread, at most
  /// once. nullptr: nothing any more; waits for an end that is under way.
  void also_end(const void* owner, std::function<void(const std::exception_ptr&)> end);
  /// From here on nothing is ended: the backend is going away. Waits for an end that is under way.
  void forget();

 private:
  /// As end_with(), together with what this stands beside.
  std::exception_ptr give_up(const Error& error, const Notice& notice);
  /// Notes the failure, tells it, and ends the operations under way, unless an earlier one was
  /// noted. Returns the first one.
  std::exception_ptr end_with(const Error& error, const Notice& notice);
  /// The same, with the ranks that are late, the place of the call, and advice.
  std::exception_ptr give_up_because(const Subject& subject, ErrorCode code,
                                     const std::string& what);
  /// The same because of a peer that has left; or of the one that has, if this needs it.
  std::exception_ptr give_up_without(int peer, const std::string& how, const Subject& subject);
  /// The group's, which what stands beside it may have.
  const std::shared_ptr<PeerLinks>& links() const {
    return beside_.whole == nullptr ? links_ : beside_.whole->links_;
  }
  bool note(const Error& error);
  std::exception_ptr noted() const;

  mutable std::mutex mutex_;
  std::exception_ptr failure_;
  struct UnderWay {
    const Subject* subject;
    bool is_message;
    std::function<void(const std::exception_ptr&)> fail;
  };
  std::list<UnderWay> under_way_;  // the oldest first
  uint64_t begun_ = 0;             // the last one's sequence
  Deadline failed_at_{};
  bool left_ = false;  // and failure_ reports that

  std::mutex end_mutex_;
  ::c10d::Backend* inner_;  // nullptr once it goes; under end_mutex_, as what follows
  std::map<const void*, std::function<void(const std::exception_ptr&)>> also_end_;
  const DelegateKind kind_;
  const Beside beside_;
  const std::shared_ptr<PeerLinks> links_;  // its own; nullptr: none
  const std::string label_;
  const int rank_, size_;
};

}  // namespace fastcomm
