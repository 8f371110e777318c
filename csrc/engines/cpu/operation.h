// A running operation of one rank on the CPU: a schedule, its executor, how far it is, and how it ended.
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

  /// Runs as many steps as the peers allow; true when done. Never blocks. Raises Error(kMismatch)
  /// when a peer's header is unlike this call's. One thread at a time. `base` is how many steps this
  /// rank has published before the operation: where the one before it ended.
  bool poll(uint32_t base);
  /// Where the next operation's base lies, once this one is done.
  uint32_t end_base() const;

  const CallHeader& header() const { return header_; }
  /// Whether its first steps are small enough for whoever issues it.
  bool brief() const { return payload_bytes() <= kBriefBytes; }
  Deadline deadline() const { return deadline_; }
  Milliseconds timeout() const { return timeout_; }
  /// How far it is: changes whenever it has moved.
  uint32_t step() const { return step_.load(std::memory_order_relaxed); }
  /// True once it goes on without staging, from buffer to buffer.
  bool direct() const { return (step() & kDirect) != 0; }
  Algorithm algorithm() const { return static_cast<Algorithm>(header_.algorithm); }
  /// The call, as messages show it.
  std::string describe() const { return describe_call(header_, detail_.c_str()) + at_site(site_); }
  /// What a peer that is awaited has done so far, as messages show it.
  std::string progress_of(int peer) const;

  /// The first rank that the current step waits for and that is not there, or -1.
  int awaited_peer() const;
  /// The ranks at fault where it takes too long: the awaited ones, or, where these have come further than
  /// others, the others, which hold them up.
  std::vector<int> late() const;
  /// True if that rank last ran on the core that this thread runs on. A hint (transport/wait.h).
  bool crowded() const;
  /// Whether the current step waits for one rank, and it is not there.
  bool awaits(int peer) const;

  /// For an operation that ends in an error: keeps memory that peers may still write to from being
  /// reused. Called by the holder of the right to poll().
  void quarantine();

  /// Set once, by finish(): readable from any thread.
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Why it failed, or nullptr; valid once done().
  std::exception_ptr error() const { return error_; }
  /// Ends the operation: on_finish, then done(). Called once, outside of every lock of the group.
  void finish(std::exception_ptr error);

  /// Set before the operation is submitted; runs once, before done() holds.
  OnFinish on_finish;

 private:
  static constexpr uint32_t kDirect = 1u << 31;  // in step_: of the direct schedule
  static constexpr uint64_t kBriefBytes = 64 * 1024;

  /// As that of its schedule (coll/schedule.h).
  uint64_t payload_bytes() const;

  bool poll_staged(uint32_t base);
  bool poll_direct();
  /// Notes a peer that gave this operation up, and whose user may have its tensor back.
  bool find_quitter();
  /// Notes in the header where this rank's memory lies, if peers have mapped it and need no slots.
  void locate(const Call& call);
  /// Once all headers are there: raises Error(kMismatch), or turns to the direct schedule if every rank's
  /// buffer can be reached. If only some can, tells ranks that have not staged theirs. All ranks read the
  /// same headers and decide alike.
  bool read_headers();
  /// Whether any rank has its tensor where peers reach it.
  bool any_shared() const;
  /// Every rank's buffer in `buffers`; false if one cannot be reached, or a list lies otherwise there.
  bool reach_all(char** buffers) const;
  void check_headers() const;
  [[noreturn]] void raise_unlike() const;
  [[noreturn]] void raise_unbalanced() const;
  /// What a rank says of its call.
  const CallNotice& notice_of(int rank) const {
    return notice_in(peers_.control_block(rank), header_.sequence);
  }
  uint32_t base() const { return base_.load(std::memory_order_relaxed); }
  /// It publishes once, last, so that both schedules of a call end at the same flag.
  uint32_t direct_base() const { return end_base() - (kDirectSteps - 1); }

  Transport& peers_;
  CallHeader header_;
  std::string detail_;
  std::string site_;         // where the program made the call, "" where nobody asked
  const AlgorithmRow* row_;  // nullptr where nothing is exchanged
  AnySchedule schedule_;
  std::unique_ptr<AnyDirect> direct_;  // touched by who polls only
  size_t shared_bytes_ = 0;            // from header_.where on
  CpuExecutor executor_;
  std::atomic<uint32_t> base_{0};  // written by who polls, as are those below
  std::atomic<uint32_t> step_{0};  // a hint for other threads
  std::atomic<int> quitter_{-1};   // likewise: the peer for which this operation waits in vain
  Milliseconds timeout_;
  Deadline deadline_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
};

}  // namespace fastcomm
