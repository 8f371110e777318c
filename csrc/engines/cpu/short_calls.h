// Calls of one step whose message is short, without an Operation: sums and barriers.
//
// A call of some bytes waits for its peer for less than a microsecond. Then it costs more to make
// an operation, to queue it and to take it out again than to carry it out: between two calls a
// program has read its weights, and each line that a call touches comes from far away.
//
// Peers see no difference: the header, the slots, the flag and their order are those of the
// schedules of one step (coll/all_reduce.h, coll/barrier.h). So an operation can take over where a
// short call stops, which is after its first step: if a peer is late, since an operation can be
// waited for, timed and given up; or if a peer's header differs, since it knows what that means.
#pragma once

#include <cstdint>
#include <optional>

#include "coll/select.h"
#include "coll/short_call.h"
#include "kernels/span_cpu.h"
#include "transport/transport.h"

namespace fastcomm {

/// Carries them out, one after the other. Not thread-safe.
class ShortCalls {
 public:
  static constexpr uint64_t kMostBytes = 64 * 1024;

  /// Both outlive it.
  ShortCalls(Transport& peers, const GroupTraits& traits) : peers_(peers), traits_(traits) {}

  /// True if the group would carry it out in one step, and there is memory for its slots; the calls
  /// below are of the call that was asked about last.
  bool takes(const ShortCall& call);
  /// Of that call.
  Algorithm algorithm() const { return known_.algorithm; }

  /// Step 0, and its publication. `base` as of Operation::poll.
  void begin(const ShortCall& call, uint64_t sequence, uint32_t base);
  /// Looks once: have all peers published theirs?
  bool arrived(uint32_t base) const {
    return executor_->arrived({0, peers_.size()}, base + kFirstStep);
  }
  /// True if the first peer that has not last ran on the core of this thread. A hint.
  bool crowded(uint32_t base) const;
  /// Once all have arrived: did they call the same, with nothing in memory that others reach?
  bool are_alike() const;
  /// Step 1, if they did.
  void end(const ShortCall& call);

  /// The step that begin() publishes, the only one.
  static constexpr uint32_t kFirstStep = 1;

 private:
  bool learn(const ShortCall& call);

  /// A kind of call, for which this is decided once.
  struct Known {
    OpKind kind = OpKind::kNone;
    DType dtype = DType::kOther;
    ReduceOp op = ReduceOp::kNone;
    uint64_t count = 0;
    Algorithm algorithm = Algorithm::kDelegated;

    bool is_of(const ShortCall& call) const {
      return kind == call.kind && count == call.count && dtype == call.dtype && op == call.op;
    }
  };

  Transport& peers_;
  const GroupTraits& traits_;
  Known known_;
  std::optional<CpuExecutor> executor_;  // for calls of that kind
  CallHeader header_{};                  // of the call under way
  uint64_t slot_ = 0;                    // likewise: bytes from the start of scratch
};

}  // namespace fastcomm
