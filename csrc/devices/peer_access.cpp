#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "devices/peer_access.h"

#include <unistd.h>

#include "core/cuda_host.h"

namespace fastcomm {
namespace {

bool granted(int device, int peer) {
  int can = 0;
  FC_CUDA(cudaDeviceCanAccessPeer(&can, device, peer), "device ", device, " to device ", peer);
  return can != 0;
}

/// Raises Error where it fails, as for a ninth peer of a device without NVSwitch.
void enable(int device, int peer) {
  const DeviceGuard guard(device);
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    forget_error(result);  // torch enables it too
    return;
  }
  if (result != cudaSuccess) {
    throw Error(ErrorCode::kSystem, concat(cuda_error_text(result, "cudaDeviceEnablePeerAccess"),
                                           ": to device ", peer));
  }
}

}  // namespace

const char* access_kind_name(AccessKind kind) {
  constexpr const char* kNames[] = {"same device", "direct", "staged"};
  return kNames[static_cast<int>(kind)];
}

PeerAccess::PeerAccess(PeerProbe probe, bool wanted)
    : probe_(probe), wanted_(wanted), owner_(getpid()) {}

const Access& PeerAccess::between(int device, int peer) {
  if (getpid() != owner_) {  // before the mutex, which a thread of the parent may have held
    throw Error(ErrorCode::kForked,
                "CUDA does not work in a child of fork(): start processes with the 'spawn' method");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = known_.find({device, peer});
  if (known != known_.end()) return known->second;
  int devices = 0;
  FC_CUDA(cudaGetDeviceCount(&devices), "to look for peers");
  FC_CHECK(device >= 0 && device < devices && peer >= 0 && peer < devices, "devices ", device,
           " and ", peer, ": this process sees ", devices);
  const Access found = find(device, peer);
  known_[{peer, device}] = found;
  return known_[{device, peer}] = found;
}

Access PeerAccess::find(int device, int peer) {
  if (device == peer) return {AccessKind::kSame, "one memory"};
  if (!wanted_) return {AccessKind::kStaged, "FASTCOMM_PEER_ACCESS=off"};
  try {
    if (!granted(device, peer) || !granted(peer, device)) {
      return {AccessKind::kStaged, "the driver grants no peer access"};
    }
    enable(device, peer);
    enable(peer, device);
    const std::string wrong = probe_(device, peer);
    if (!wrong.empty()) return {AccessKind::kStaged, "the driver grants peer access, but " + wrong};
  } catch (const Error& error) {
    return {AccessKind::kStaged, concat("peer access fails: ", error.what())};
  }
  return {AccessKind::kDirect, "a probe on both devices at once confirmed every bit"};
}

}  // namespace fastcomm
#endif
