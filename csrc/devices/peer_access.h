// Access of this process's devices to each other's memory, with the reason if there is none.
//
// A pair of devices is examined on the first request for it, once per process: this opens a context
// on both, which takes hundreds of megabytes of a GPU that may not be wanted. Access that the
// driver grants is enabled, then tried: on some machines (PCIe access control, an IOMMU, certain
// cards) it is granted, but other bytes arrive. Only access confirmed by a probe counts as direct.
// The probe runs on both devices at once, with each writing to and reading from the other. Kernels
// are not this layer's, so the creator of the object brings the probe (devices/peer_probe.h).
//
// A verdict is the same in both directions: a fault in one makes the link suspect. All verdicts are
// final but one: "unproved", if the devices were too busy to run the probe at once. Such a pair is
// staged, and look_again() tries it again after 10 s, 20 s, and so on up to 10 minutes: each try
// that fails may hold the asking thread up for a second. That thread may not be capturing a stream;
// captures of other threads are not disturbed.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <sys/types.h>

#include "core/hd.h"

namespace fastcomm {

enum class AccessKind {
  kSame,    // the same device
  kDirect,  // kernels of either may read and write the other's memory
  kStaged,  // neither touches the other's memory: data goes through pinned memory of the host
};

const char* access_kind_name(AccessKind kind);

struct Access {
  AccessKind kind;
  std::string reason;
  bool unproved = false;  // staged for now: look_again() may change it
};

/// Result of a probe.
struct ProbeResult {
  std::string wrong = {};  // "": every bit was right
  bool busy = false;       // nothing is known to be wrong: the devices did not run it at once
};

/// Tries the access of two devices to each other, which has been enabled, up to `tries` times while
/// they are busy. May raise Error.
using PeerProbe = ProbeResult (*)(int device, int peer, int tries);

/// Any thread may use one.
class PeerAccess {
 public:
  /// `wanted` false: every pair is staged, and nothing is tried (FASTCOMM_PEER_ACCESS=off). `now`
  /// is the clock for further tries.
  PeerAccess(PeerProbe probe, bool wanted, uint64_t (*now)() = clock_ns);

  /// The verdict on `device`'s access to the memory of `peer`. The returned object never changes
  /// and lives as long as this one; a later verdict is another object, to be asked for again. Two
  /// threads that ask at once wait for one probe. Never fails because of a link: any fault in a
  /// probe is a reason to stage. Raises Error: no such device (kInvalidArgument); in a child of
  /// fork(), where CUDA does not work (kForked).
  const Access& between(int device, int peer);

  /// The same, but tries an unproved pair again if it is time. All pairs share one clock, and a
  /// thread that asks while another one tries gets the known verdict: no thread waits.
  const Access& look_again(int device, int peer);

  /// True if look_again() would try an unproved pair.
  bool is_time() const { return now_() >= next_try_ns_.load(std::memory_order_relaxed); }

 private:
  Access find(int device, int peer, int tries);
  const Access& keep(int device, int peer, Access verdict);

  const PeerProbe probe_;
  const bool wanted_;
  const pid_t owner_;
  uint64_t (*const now_)();
  std::mutex mutex_;
  std::deque<Access> verdicts_;  // grows without moving its elements
  std::map<std::pair<int, int>, const Access*> known_;
  bool trying_ = false;                   // again
  uint64_t delay_ns_ = 0;                 // 0: no pair is unproved yet
  std::atomic<uint64_t> next_try_ns_{0};  // relaxed: the next try is decided again under the mutex
};

}  // namespace fastcomm
