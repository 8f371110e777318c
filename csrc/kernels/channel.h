// State of a channel of operations between devices from one operation to the next, and its record
// of a failed wait.
//
// Each struct has one writer: the channel's block on its own rank. Seen by host and device.
#pragma once

#include <cstdint>

#include "core/control.h"
#include "core/hd.h"

namespace fastcomm {

/// In device memory, zeroed before the first operation. Lives and advances on the device, so that a
/// captured graph counts on at every replay; read at the start of a kernel and written at its end,
/// so the stream orders it.
struct alignas(64) ChannelState {
  uint32_t base;    // meetings before this one
  uint32_t failed;  // not 0: a wait failed, and every later operation returns at once
  uint32_t shorts;  // operations of one launch (engines/cuda/short.h); their parity: the slot
  uint32_t busy;    // not 0: an operation of a guarded channel is under way
};

/// A kernel's part in the guard of a channel whose operations no host orders, those that graphs
/// replay: two at once are an error. Each operation takes the channel in its first meeting, and
/// gives it back in its last.
struct ChannelGuard {
  bool is_on;
  bool takes;
  bool gives;
};

/// True if a kernel has nothing left to do. `channel` is nullptr, or in device memory, and written
/// by earlier kernels of its stream.
FC_HD bool has_failed(const ChannelState* channel) {
  return channel != nullptr && channel->failed != 0 && !FC_LEFT_OUT(Control::kWorkOn);
}

enum class WaitFailure : uint32_t {
  kNone = 0,
  kTimeout = 1,
  kAborted = 2,
  kMismatch = 3,    // `peer` has called another operation
  kPeerFailed = 4,  // `peer` has given up: its own record has the reason
  kReplays = 5,     // two operations of a guarded channel ran at once on this rank
};

/// In host memory that the device has mapped, zeroed before the first operation. `failure` is
/// stored last, with release: a host that sees it not kNone sees the rest. The first failure stays.
struct alignas(64) WaitRecord {
  uint64_t missing;  // bit r: rank r had not come
  int32_t peer;      // the first missing rank; -1 if an abort came when all were there
  uint32_t failure;  // a WaitFailure, written last
};

/// Bounds of a wait.
struct WaitBounds {
  uint64_t timeout_ns;         // of one wait, by the device's clock
  const uint32_t* abort_word;  // host memory; not 0: give up. May be nullptr.
};

}  // namespace fastcomm
