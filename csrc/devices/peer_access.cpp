#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "devices/peer_access.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/beside_captures.h"
#include "core/cuda_host.h"
#include "core/device_guard.h"

namespace fastcomm {
namespace {

constexpr int kFirstTries = 3;  // to find both devices free at once
constexpr uint64_t kFirstDelayNs = 10'000'000'000;
constexpr uint64_t kLongestDelayNs = 600'000'000'000;

bool granted(int device, int peer) {
  int can = 0;
  FC_CUDA(cudaDeviceCanAccessPeer(&can, device, peer), "device ", device, " to device ", peer);
  return can != 0;
}

/// Raises Error if it fails, as for a ninth peer of a device without NVSwitch.
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

PeerAccess::PeerAccess(PeerProbe probe, bool wanted, uint64_t (*now)())
    : probe_(probe), wanted_(wanted), owner_(getpid()), now_(now) {}

const Access& PeerAccess::between(int device, int peer) {
  if (getpid() != owner_) {  // before the mutex, which a thread of the parent may have held
    throw Error(ErrorCode::kForked,
                "CUDA does not work in a child of fork(): start processes with the 'spawn' method");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = known_.find({device, peer});
  if (known != known_.end()) return *known->second;
  int devices = 0;
  FC_CUDA(cudaGetDeviceCount(&devices), "to look for peers");
  FC_CHECK(device >= 0 && device < devices && peer >= 0 && peer < devices, "devices ", device,
           " and ", peer, ": this process sees ", devices);
  const Access& found = keep(device, peer, find(device, peer, kFirstTries));
  if (found.unproved && delay_ns_ == 0) {
    delay_ns_ = kFirstDelayNs;
    next_try_ns_ = now_() + delay_ns_;
  }
  return found;
}

const Access& PeerAccess::look_again(int device, int peer) {
  const Access& known = between(device, peer);
  if (!known.unproved) return known;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Access& latest = *known_[{device, peer}];
    if (!latest.unproved || trying_ || !is_time()) return latest;
    trying_ = true;
  }
  // Without the mutex: other threads that ask meanwhile get the known verdict.
  Access found = find(device, peer, 1);
  std::lock_guard<std::mutex> lock(mutex_);
  trying_ = false;
  // The result for one pair decides when the next is tried: at once, if the devices are free now.
  delay_ns_ = found.unproved ? std::min(2 * delay_ns_, kLongestDelayNs) : kFirstDelayNs;
  if (found.unproved) next_try_ns_ = now_() + delay_ns_;
  return found.unproved ? *known_[{device, peer}] : keep(device, peer, std::move(found));
}

const Access& PeerAccess::keep(int device, int peer, Access verdict) {
  verdicts_.push_back(std::move(verdict));
  known_[{peer, device}] = &verdicts_.back();
  return *(known_[{device, peer}] = &verdicts_.back());
}

Access PeerAccess::find(int device, int peer, int tries) {
  if (device == peer) return {AccessKind::kSame, "one memory"};
  if (!wanted_) return {AccessKind::kStaged, "FASTCOMM_PEER_ACCESS=off"};
  try {
    const BesideCaptures beside(device);
    if (!granted(device, peer) || !granted(peer, device)) {
      return {AccessKind::kStaged, "the driver grants no peer access"};
    }
    enable(device, peer);
    enable(peer, device);
    const ProbeResult result = probe_(device, peer, tries);
    if (result.busy) {
      return {AccessKind::kStaged,
              concat("the driver grants peer access, but for now it is unproved: ", result.wrong),
              true};
    }
    if (!result.wrong.empty()) {
      return {AccessKind::kStaged, "the driver grants peer access, but " + result.wrong};
    }
  } catch (const std::exception& error) {  // such as a thread that cannot be started
    return {AccessKind::kStaged, concat("peer access fails: ", error.what())};
  }
  return {AccessKind::kDirect, "a probe on both devices at once confirmed every bit"};
}

}  // namespace fastcomm
#endif
