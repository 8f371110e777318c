// Probe of two devices that may use each other's memory: both must see the right bits there.
//
// Both devices run a block at once. In every round each device fills its box, a piece of its
// memory, with a pattern; when both have, each reads the other's box and writes to the other's
// inbox; when both have, each checks its own inbox. Between these phases they meet through flags in
// pinned memory of the host, so that a broken link cannot break the meeting.
//
// Of the code for devices of one process, only this lets a device wait for another without an
// event: within a bound, and before the work of an operation, never in it. A pair whose blocks
// never run at once is reported as busy. A kernel that does not end (for instance because PCIe
// access control leaves a read unanswered) is abandoned, and its memory is not freed.
#pragma once

#include <string>

#include "devices/peer_access.h"

namespace fastcomm {

/// A PeerProbe: runs on devices `first` and `second`, whose access to each other is enabled. A try
/// takes some milliseconds, or a second if a device is busy. Raises Error(kSystem) if CUDA fails.
ProbeResult probe_peers(int first, int second, int tries = 1);

}  // namespace fastcomm
