// Which devices of this process reach the tensors on each other, and why not: kernels reach the
// memory (devices/peer_probe.h), and torch's allocator maps what it gives out for them.
//
// Only in builds with FC_DEVICES.
#pragma once

#include "devices/peer_access.h"

namespace fastcomm {

PeerAccess& tensor_access();

}  // namespace fastcomm
