// Where ranks meet (engines/cuda/meeting.h): what each says to the others, and what it records. Seen by host and
// device.
#pragma once

#include <cstdint>

#include "coll/call_header.h"
#include "kernels/channel.h"

namespace fastcomm {

/// A window is read by kernels that sum up this many.
constexpr int kMaxDeviceRanks = 16;

/// What one rank says to another in every other meeting, in the other's window. Zero before the first.
struct MeetingLine {
  alignas(kLineBytes) CallHeader call;
  uint32_t flag;        // the last of those meetings that the writer has come to
  uint32_t has_failed;  // not 0: the writer has given up
};
static_assert(sizeof(MeetingLine) == kLineBytes, "one transaction");

/// What a channel records, in host memory that the device has mapped. Zero before the first meeting.
struct MeetingRecord {
  WaitRecord wait;
  CallHeader own;  // of the operation that failed
  // Of kMismatch: what each of the peers has called, where its bit is set.
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
};

/// Bytes of a window that the lines take, for `size` ranks.
constexpr uint64_t meeting_lines_bytes(int size) { return 2 * size * sizeof(MeetingLine); }

}  // namespace fastcomm
