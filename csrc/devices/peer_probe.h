// Probe of two devices that may use each other's memory: both must see the right bits there.
//
// Both devices run a block at once. In every round each fills a box of its own memory with a
// pattern; when both have, each reads the other's box and writes to the other's second box; when
// both have, each checks the box that the other wrote. They meet between these phases through flags
// in pinned memory of the host, so that a broken link cannot break the meeting.
//
// It is the one place where a device waits for another without an event: at set-up, within a bound,
// and never in an operation. A pair that never runs at once is reported as busy; a kernel that does
// not come back (for instance when PCIe access control leaves a read unanswered) is given up with
// its memory.
#pragma once

#include <string>

#include "devices/peer_access.h"

namespace fastcomm {

/// A PeerProbe: runs on devices `first` and `second`, whose access to each other is enabled. A try
/// takes some milliseconds, or a second if a device is busy. Raises Error(kSystem) if CUDA fails.
ProbeResult probe_peers(int first, int second, int tries = 1);

}  // namespace fastcomm
