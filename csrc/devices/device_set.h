// CUDA devices of this process that work together, and the state of their operations: the devices'
// access to each other, events that order the ranks' streams, pinned memory for data that cannot go
// directly.
//
// One host thread works for all ranks, so nothing is published, no rank waits on a flag, and no
// Transport is needed. A rank is a place in the list of devices, and the same device may appear
// there several times. Each call brings one stream per rank, of the rank's device (0: its default
// stream).
//
// Ordering contract. mark(m, r) stands for all work given to rank r's stream so far; await(m, r,
// peer) makes later work of rank r's stream wait for the peer's mark m. Both only enqueue. The set
// owns the marks, and the next operation reuses them, so mutex() is held while an operation is
// issued.
//
// Cost: a mark or a wait is about a microsecond of the host. Nothing is allocated except in the
// constructor, by a probe in look_again(), and in staging() if that has to grow. A graph can
// capture direct operations if the capture includes the streams of all ranks; staged ones wait for
// marks of earlier calls, which a capture refuses.
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

/// The state of a rank once a mark of it has been reached. Each is one event per rank.
enum class Mark {
  kReady,       // all work before the operation is done
  kStaged,      // its data is in pinned memory
  kWorked,      // it has copied or reduced the data
  kFinished,    // it touches no other rank's memory any more
  kDrained,     // it has read the staged data in the even half
  kDrainedOdd,  // the same, in the odd half
};
constexpr int kNumMarks = 6;

/// Pinned memory in two halves that rounds of staging use in turn. A writer of a half first waits
/// for the kDrained marks of its last readers.
struct Staging {
  char* memory = nullptr;
  uint64_t half_bytes = 0;
  uint64_t rounds = 0;       // so far, in all operations
  uint32_t readers[2] = {};  // by half; bit r: rank r has left a kDrained mark
};

struct DeviceSetOptions {
  uint64_t most_staging_bytes = uint64_t{32} << 20;
  bool stage_all = false;  // as if no rank reached another's memory: for tests on one device
};

class DeviceSet {
 public:
  /// Asks `access` about every pair of devices, which probes the pairs that it does not know yet.
  /// `access` outlives the set. Raises Error: no such device, not 1 to kMaxLocalRanks ranks
  /// (kInvalidArgument); CUDA fails (kSystem).
  DeviceSet(std::vector<int> devices, PeerAccess& access, const DeviceSetOptions& options = {});
  DeviceSet(const DeviceSet&) = delete;
  DeviceSet& operator=(const DeviceSet&) = delete;

  /// Waits for the last readers of the pinned memory, if there is any.
  ~DeviceSet();

  int size() const { return static_cast<int>(devices_.size()); }
  int device(int rank) const { return devices_[rank]; }
  /// True if kernels of `rank` may read and write memory of `peer`. Only look_again() changes this,
  /// and only to true.
  bool direct(int rank, int peer) const { return access(rank, peer).kind != AccessKind::kStaged; }
  const Access& access(int rank, int peer) const {
    return *access_[rank * size() + peer].load(std::memory_order_acquire);
  }

  /// Asks again about pairs that were unproved because their devices were busy, if it is time and
  /// no stream is captured; usually, it costs nothing. An operation calls it before it asks which
  /// ranks reach each other. `streams` have been checked; the mutex is held.
  void look_again(const Streams& streams);

  /// Held by one operation at a time.
  std::mutex& mutex() { return mutex_; }

  /// Raises Error: not one stream per rank (kInvalidArgument); a child of fork() (kForked).
  void check(const Streams& streams) const;

  // `guard` guards the current device, which all of these may change.
  void mark(Mark mark, int rank, const Streams& streams, DeviceGuard& guard);
  /// Does nothing if both ranks use the same stream, whose work is in order.
  void await(Mark mark, int rank, int peer, const Streams& streams, DeviceGuard& guard);
  /// The same for a mark of an earlier operation, which may have used other streams.
  void await_earlier(Mark mark, int rank, int peer, const Streams& streams, DeviceGuard& guard);

  /// Makes every stream wait for all work given to all streams so far, by way of the first rank:
  /// 2 (n - 1) waits instead of n (n - 1). Uses `mark`.
  void meet(Mark mark, const Streams& streams, DeviceGuard& guard);

  /// The set's pinned memory, with `wanted` bytes per half or as many as allowed. Grows in powers
  /// of two; outgrown memory is kept until the set is destroyed, since devices may still use it.
  /// Raises Error(kSystem).
  Staging& staging(uint64_t wanted);

  /// Of both halves.
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
  std::vector<std::atomic<const Access*>> access_;  // [rank * size() + peer]
  bool unproved_ = false;                           // true if any of access_ is
  std::vector<Event> events_;
  std::vector<Pinned> pinned_;  // the last one is in use
  Staging staging_;
  const uint64_t most_half_bytes_;
  const pid_t owner_;
  std::mutex mutex_;
};

}  // namespace fastcomm
