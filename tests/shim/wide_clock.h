// Vector clocks over what runs in several processes: who has seen how much of whose work, found out
// while it runs (shim/shared_memory.h).
//
// A worker is a stream, a block of the kernels in a stream, or a thread of a block, in a process.
// Work is numbered by launch and phase: a stream counts what it runs, a block its barriers since
// the launch. Whoever has seen a stream up to some point has seen its blocks and threads up to
// there, and with a block, its threads; so a clock keeps no more of each than it has to.
#pragma once

#include <cstdint>
#include <map>

namespace fastcomm::shim {

/// Process: 32 bits, stream: 16, block + 1: 12, thread + 1: 4; 0 for all blocks, or all threads.
using Worker = uint64_t;
constexpr Worker kThreadMask = 0xf;
constexpr Worker kBlockMask = 0xfff0;
constexpr uint32_t kMostStreams = 0xffff;
constexpr uint32_t kMostBlocks = 0xfff - 1;

inline Worker stream_worker(uint32_t process, uint32_t stream) {
  return Worker{process} << 32 | Worker{stream} << 16;
}
inline Worker block_worker(Worker stream, uint32_t block) {
  return stream | Worker{block + 1} << 4;
}
inline Worker thread_worker(Worker block, uint32_t thread) { return block | (thread + 1); }

constexpr int kPhaseBits = 24;
constexpr uint64_t kWholeLaunch = (uint64_t{1} << kPhaseBits) - 1;
/// Phase 1 is before a block's first barrier; kWholeLaunch: all of the launch.
inline uint64_t work_number(uint64_t launch, uint64_t phase) {
  return launch << kPhaseBits | phase;
}

/// A clock in memory that processes share.
struct FlatClock {
  static constexpr uint32_t kMost = 256;
  struct Entry {
    Worker worker;
    uint64_t number;
  };
  uint32_t count;
  Entry entries[kMost];
};

class WideClock {
 public:
  bool seen(Worker worker, uint64_t number) const {
    return of(worker) >= number || of(worker & ~kThreadMask) >= number ||
           of(worker & ~(kThreadMask | kBlockMask)) >= number;
  }

  void learn(Worker worker, uint64_t number) {
    if (seen(worker, number)) return;
    if ((worker & kThreadMask) == 0) {
      const Worker last = worker | kThreadMask | ((worker & kBlockMask) == 0 ? kBlockMask : 0);
      for (auto part = seen_.upper_bound(worker); part != seen_.end() && part->first <= last;) {
        part = part->second <= number ? seen_.erase(part) : std::next(part);
      }
    }
    seen_[worker] = number;
  }
  void join(const WideClock& other) {
    for (const auto& [worker, number] : other.seen_) learn(worker, number);
  }
  void join(const FlatClock& other) {
    for (uint32_t i = 0; i < other.count; ++i) {
      learn(other.entries[i].worker, other.entries[i].number);
    }
  }
  /// False, and an empty clock, if it does not fit.
  bool store(FlatClock& flat) const {
    flat.count = 0;
    if (seen_.size() > FlatClock::kMost) return false;
    for (const auto& [worker, number] : seen_) flat.entries[flat.count++] = {worker, number};
    return true;
  }

 private:
  uint64_t of(Worker worker) const {
    const auto found = seen_.find(worker);
    return found == seen_.end() ? 0 : found->second;
  }

  std::map<Worker, uint64_t> seen_;
};

}  // namespace fastcomm::shim
