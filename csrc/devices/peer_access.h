// Which devices of this process can use each other's memory, and why not.
//
// A pair of devices is looked at when somebody asks for it, once a process: looking opens a context
// on both, which takes hundreds of megabytes of a GPU that nobody may want to use. Access that the
// driver grants is enabled, then tried: on some machines (PCIe access control, an IOMMU, certain
// cards) it is granted, and other bytes come. Only what a probe has confirmed counts as direct; it
// runs on both devices at once, with each writing to and reading from the other. What runs on the
// data is not this layer's, so whoever creates the object brings the probe
// (devices/peer_probe.h).
//
// A verdict is the same in both directions: what is wrong in one makes the link suspect.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <sys/types.h>

namespace fastcomm {

enum class AccessKind {
  kSame,    // the same device
  kDirect,  // kernels of the one may read and write the other's memory
  kStaged,  // neither touches the other's memory: data goes through pinned memory of the host
};

const char* access_kind_name(AccessKind kind);

struct Access {
  AccessKind kind;
  std::string reason;
};

/// Tries the access of two devices to each other, which has been enabled. Returns "" where every
/// bit was right, else what was wrong. May raise Error.
using PeerProbe = std::string (*)(int device, int peer);

/// Any thread may use one.
class PeerAccess {
 public:
  /// `wanted` false: every pair is staged, and nothing is tried (FASTCOMM_PEER_ACCESS=off).
  PeerAccess(PeerProbe probe, bool wanted);

  /// The verdict on `device`'s access to the memory of `peer`; stays valid as long as the object.
  /// Two threads that ask at once wait for one probe. Never fails because of a link: whatever goes
  /// wrong in a probe is a reason to stage. Raises Error: no such device (kInvalidArgument); in a
  /// child of fork(), where CUDA does not work (kForked).
  const Access& between(int device, int peer);

 private:
  Access find(int device, int peer);

  const PeerProbe probe_;
  const bool wanted_;
  const pid_t owner_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, Access> known_;
};

}  // namespace fastcomm
