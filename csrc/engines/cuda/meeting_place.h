// The memory of a meeting (engines/cuda/meeting.h): the ranks' messages and records. Seen by host
// and device.
#pragma once

#include <cstdint>

#include "coll/call_header.h"
#include "kernels/channel.h"

namespace fastcomm {

/// Kernels that sum up windows have at most this many sources.
constexpr int kMaxDeviceRanks = 16;

/// One rank's message to another in every other meeting, in the other's window. Zero before the
/// first.
struct MeetingLine {
  alignas(kLineBytes) CallHeader call;
  uint32_t flag;        // the writer's last one of those meetings
  uint32_t has_failed;  // not 0: the writer has given up
};
static_assert(sizeof(MeetingLine) == kLineBytes, "one transaction");

/// A channel's record, in host memory that the device has mapped. Zero before the first meeting.
struct MeetingRecord {
  WaitRecord wait;
  CallHeader own;  // of the operation that failed
  // Of kMismatch: the calls of the peers whose bits are set.
  CallHeader calls[kMaxDeviceRanks];
  uint64_t called;
};

/// The ends of a channel. Pointers are device pointers.
struct MeetingPlace {
  int rank;
  int size;                             // 1 to kMaxDeviceRanks
  MeetingLine* lines[kMaxDeviceRanks];  // in each rank's window: two from each rank
  ChannelState* state;                  // in this device's memory, zeroed
  MeetingRecord* record;
  ChannelGuard guard{};

  /// The same for an operation's first meeting, or its last, or neither.
  MeetingPlace in_operation(bool is_first, bool is_last) const {
    MeetingPlace place = *this;
    place.guard.takes = guard.is_on && is_first;
    place.guard.gives = guard.is_on && is_last;
    return place;
  }
};

/// Bytes of the lines in a window, for `size` ranks.
constexpr uint64_t meeting_lines_bytes(int size) { return 2 * size * sizeof(MeetingLine); }

}  // namespace fastcomm
