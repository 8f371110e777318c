// CUDA devices of this process that work together, and the state of their operations: the devices'
// access to each other, events that order the ranks' streams, pinned memory for data that cannot go
// directly.
//
// One host thread works for all ranks, so nothing is published and nobody waits on a flag: this is
// no Transport. A rank is a place in the list of devices, and the same device may appear there
// several times. Each call brings one stream per rank, of the rank's device (0: its default
// stream).
//
// Ordering contract. mark(m, r) stands for all work given to rank r's stream so far; await(m, r,
// peer) makes later work of rank r's stream wait for the peer's mark m. Both only enqueue. The set
// owns the marks, and its next call reuses them: the holder of mutex() issues one operation as a
// whole.
//
// Cost: a mark or a wait is about a microsecond of the host. Nothing is allocated except in the
// constructor and in staging(), if that has to grow. A graph can capture direct operations if the
// capture includes the streams of all ranks; staged ones wait for marks of earlier calls, which a
// capture refuses.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "core/cuda_host.h"
#include "core/device_guard.h"
#include "devices/peer_access.h"

namespace fastcomm {

constexpr int kMaxLocalRanks = 16;

/// One per rank.
using Streams = std::vector<cudaStream_t>;

/// The work that a mark of a rank stands for. Each is one event per rank.
enum class Mark {
  kReady,     // the caller's work before the operation
  kStaged,    // its data is in pinned memory
  kWorked,    // it has worked on the data
  kFinished,  // it touches no other rank's memory any more
  kDrained,   // it has read the staged data in the even half
  kDrainedOdd,
};
constexpr int kNumMarks = 6;

/// Pinned memory in two halves that rounds of staging use in turn. A writer of a half first waits
/// for the kDrained marks of its last readers.
struct Staging {
  char* memory = nullptr;
  uint64_t half_bytes = 0;
  uint64_t rounds = 0;       // so far, in all operations
  uint32_t readers[2] = {};  // bit r: rank r has left a mark
};

struct DeviceSetOptions {
  uint64_t most_staging_bytes = uint64_t{32} << 20;
  bool stage_all = false;  // as if no rank reached another's memory: for tests on one device
};

class DeviceSet {
 public:
  /// Asks `access` about every pair of different devices: the first set of a process probes.
  /// `access` outlives the set. Raises Error: no such device, not 1 to kMaxLocalRanks ranks
  /// (kInvalidArgument); CUDA fails (kSystem).
  DeviceSet(std::vector<int> devices, PeerAccess& access, const DeviceSetOptions& options = {});
  DeviceSet(const DeviceSet&) = delete;
  DeviceSet& operator=(const DeviceSet&) = delete;

  /// Waits for the last users of the pinned memory, if there is any.
  ~DeviceSet();

  int size() const { return static_cast<int>(devices_.size()); }
  int device(int rank) const { return devices_[rank]; }
  /// True if kernels of `rank` may read and write memory of `peer`. Only look_again() may change
  /// this from staged to direct.
  bool direct(int rank, int peer) const { return access(rank, peer).kind != AccessKind::kStaged; }
  const Access& access(int rank, int peer) const {
    return *access_[rank * size() + peer].load(std::memory_order_acquire);
  }

  /// Asks again about pairs that were unproved because their devices were busy, if it is time and
  /// no stream is captured. An operation calls it before it asks which ranks reach each other;
  /// usually it costs nothing. `streams` have been checked; the mutex is held.
  void look_again(const Streams& streams);

  /// Held by one operation at a time.
  std::mutex& mutex() { return mutex_; }

  /// Raises Error: not one stream per rank (kInvalidArgument); a child of fork() (kForked).
  void check(const Streams& streams) const;

  // All of these leave the rank's device current in `guard`.
  void mark(Mark mark, int rank, const Streams& streams, DeviceGuard& guard);
  /// Does nothing if both ranks use one stream, which is in order.
  void await(Mark mark, int rank, int peer, const Streams& streams, DeviceGuard& guard);
  /// As await, for a mark of an earlier call, which had other streams.
  void await_earlier(Mark mark, int rank, int peer, const Streams& streams, DeviceGuard& guard);

  /// Every stream waits for all work given to all streams so far, by way of the first rank: 2 (n -
  /// 1) waits instead of n (n - 1). Uses `mark`.
  void meet(Mark mark, const Streams& streams, DeviceGuard& guard);

  /// The set's pinned memory, with `wanted` bytes per half or as many as allowed. Grows in powers
  /// of two; outgrown memory is kept until the set is destroyed, since devices may still use it.
  /// Raises Error(kSystem).
  Staging& staging(uint64_t wanted);

  static constexpr uint64_t kLeastStagingBytes = uint64_t{64} << 10;

 private:
  struct DestroyEvent {
    void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
  };
  struct FreePinned {
    void operator()(char* memory) const { static_cast<void>(cudaFreeHost(memory)); }
  };
  using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
  using Pinned = std::unique_ptr<char, FreePinned>;

  cudaEvent_t event(Mark mark, int rank) const {
    return events_[rank * kNumMarks + static_cast<int>(mark)].get();
  }
  bool same_stream(int a, int b, const Streams& streams) const {
    return devices_[a] == devices_[b] && streams[a] == streams[b];
  }

  const std::vector<int> devices_;
  PeerAccess& peers_;
  std::vector<std::atomic<const Access*>> access_;  // rank by rank
  bool unproved_ = false;                           // one of them is
  std::vector<Event> events_;
  std::vector<Pinned> pinned_;  // the last one is in use
  Staging staging_;
  const uint64_t most_half_bytes_;
  const pid_t owner_;
  std::mutex mutex_;
};

}  // namespace fastcomm
