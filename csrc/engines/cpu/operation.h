// A running operation of one rank on the CPU: a schedule, its executor, its progress, and its
// outcome.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "coll/call.h"
#include "coll/describe_call.h"
#include "coll/schedules.h"
#include "coll/select.h"
#include "core/call_site.h"
#include "core/clock.h"
#include "core/spans.h"
#include "kernels/span_cpu.h"
#include "transport/transport.h"

namespace fastcomm {

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  using OnFinish = std::function<void(const Operation&, const std::exception_ptr&)>;

  Operation(const Call& call, Transport& peers, const GroupTraits& group, uint64_t sequence,
            Milliseconds timeout, std::string site = "");
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// True if this, once it has ended, can be made an operation of that call by renew(): the two
  /// differ in their numbers, their records and the places of their data alone.
  bool is_like(const Call& call) const;
  /// Makes it one. It has ended, and nobody else holds it.
  void renew(const Call& call, uint64_t sequence, Milliseconds timeout, std::string site);

  /// Goes on with a call whose first steps this rank has run and published without it, with the
  /// same header, before the first poll. `base` as of poll().
  void resume(uint32_t base, uint32_t step) {
    base_.store(base, std::memory_order_relaxed);
    step_.store(step, std::memory_order_relaxed);
  }

  /// Runs as many steps as the peers allow; true when done. Never blocks. Raises Error(kMismatch)
  /// if a peer's header is unlike this call's. One thread at a time. `base` is the number of steps
  /// that this rank published before the operation: the end of the previous one.
  bool poll(uint32_t base);
  /// The next operation's base, once this one is done.
  uint32_t end_base() const;

  const CallHeader& header() const { return header_; }
  /// True if its first steps are small enough for the thread that issues it.
  bool brief() const { return payload_bytes() <= kBriefBytes; }
  /// Counts its timeout from now on, unless it is counted already. One thread at a time.
  void begin_deadline() {
    if (deadline() == Deadline::max()) {
      deadline_.store(deadline_after(timeout_).time_since_epoch(), std::memory_order_relaxed);
    }
  }
  Deadline deadline() const { return Deadline(deadline_.load(std::memory_order_relaxed)); }
  Milliseconds timeout() const { return timeout_; }
  /// Its progress: changes whenever it has moved.
  uint32_t step() const { return step_.load(std::memory_order_relaxed); }
  /// True once it goes on without staging, from buffer to buffer.
  bool direct() const { return (step() & kDirect) != 0; }
  Algorithm algorithm() const { return static_cast<Algorithm>(header_.algorithm); }
  /// The call, as shown in messages.
  std::string describe() const { return describe_call(header_, detail_.c_str()) + at_site(site_); }
  /// The progress of an awaited peer, as shown in messages.
  std::string progress_of(int peer) const;

  /// The first missing rank that the current step waits for, or -1.
  int awaited_peer() const;
  /// The ranks at fault if it takes too long: the awaited ones; or, if these have come further than
  /// others, the others, which hold them up.
  std::vector<int> late() const;
  /// True if that rank last ran on the core of this thread. A hint (transport/wait.h).
  bool crowded() const;
  /// True if the current step waits for that rank, and it is not there.
  bool awaits(int peer) const;
  /// False if poll() would find that a peer is not there: a look at the flags alone. For the thread
  /// that polls.
  bool may_move() const {
    const uint32_t at = step();
    if (at == 0 || direct()) return true;
    return std::visit(
        [&](const auto& schedule) { return executor_.arrived(schedule.wait_for(at), base() + at); },
        schedule_);
  }

  /// For an operation that ends in an error: keeps memory that peers may still write to from being
  /// reused. Called by the holder of the right to poll().
  void quarantine();

  /// Set once, by finish(): readable from any thread.
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// The error, or nullptr; valid once done().
  std::exception_ptr error() const { return error_; }
  /// Ends the operation: on_finish, then done(). Called once, outside of every lock of the group.
  void finish(std::exception_ptr error);

  /// Set before the operation is submitted; runs once, before done() holds.
  OnFinish on_finish;
  /// Set likewise, if somebody asks for it; then of the polling thread, and of finish().
  std::unique_ptr<OperationSpan> span;

 private:
  static constexpr uint32_t kDirect = 1u << 31;  // in step_: of the direct schedule
  static constexpr uint64_t kBriefBytes = 64 * 1024;

  /// That of its schedule (coll/schedule.h).
  uint64_t payload_bytes() const;

  bool poll_staged(uint32_t base);
  bool poll_direct();
  /// Finds and notes a peer that gave this operation up, so that its user may have its tensor back.
  bool find_quitter();
  /// Notes in the header the place of this rank's memory, if peers have mapped it and need no
  /// slots.
  void locate(const Call& call);
  /// Once all headers are there: raises Error(kMismatch), or turns to the direct schedule if every
  /// rank's buffer can be reached. If only some can, tells ranks that have not staged theirs. All
  /// ranks read the same headers and decide alike.
  bool read_headers();
  /// True if peers reach the tensor of any rank.
  bool any_shared() const;
  /// Every rank's buffer in `buffers`; false if one cannot be reached, or a list has another layout
  /// there.
  bool reach_all(char** buffers) const;
  void check_headers() const;
  [[noreturn]] void raise_unlike() const;
  [[noreturn]] void raise_unbalanced() const;
  /// A rank's notice of its call.
  const CallNotice& notice_of(int rank) const {
    return notice_in(peers_.control_block(rank), header_.sequence);
  }
  uint32_t base() const { return base_.load(std::memory_order_relaxed); }
  /// It publishes once, last, so that both schedules of a call end at the same flag.
  uint32_t direct_base() const { return end_base() - (kDirectSteps - 1); }

  Transport& peers_;
  CallHeader header_;
  std::string detail_;
  CallRecord record_;
  std::string site_;         // place of the call in the program, "" if not asked for
  const AlgorithmRow* row_;  // nullptr if nothing is exchanged
  const ScratchLayout layout_;
  AnySchedule schedule_;
  std::unique_ptr<AnyDirect> direct_;  // only touched by the polling thread
  size_t shared_bytes_ = 0;            // from header_.where on
  CpuExecutor executor_;
  std::atomic<uint32_t> base_{0};  // written by the polling thread, as are those below
  std::atomic<uint32_t> step_{0};  // a hint for other threads
  std::atomic<int> quitter_{-1};   // likewise: the peer for which this operation waits in vain
  Milliseconds timeout_;
  std::atomic<Clock::duration> deadline_{Clock::duration::max()};
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
};

}  // namespace fastcomm
