#include "ops/tensor_access.h"

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <string>

#include "core/env.h"
#include "devices/peer_probe.h"

namespace fastcomm {
namespace {

/// A PeerProbe. Memory that torch maps piece by piece (expandable segments) is mapped for others
/// only on demand, and some allocators cannot do so.
ProbeResult probe_tensors(int device, int peer, int tries) {
  ProbeResult result = probe_peers(device, peer, tries);
  if (result.busy || !result.wrong.empty()) return result;
  if (map_for_peers(device, peer, result.wrong)) map_for_peers(peer, device, result.wrong);
  return result;
}

}  // namespace

PeerAccess& tensor_access() {
  static auto& access = *new PeerAccess(probe_tensors, environment().peer_access);
  return access;
}

}  // namespace fastcomm
#endif
