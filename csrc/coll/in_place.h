// Calls that need no slots if tensors lie in memory that every rank has mapped, and the memory that
// they use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coll/call.h"
#include "coll/schedules.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// Memory of a rank that its peers must have mapped for a call without slots, and the layout of the
/// tensors in it. None if `begin` is nullptr.
struct Reachable {
  char* begin = nullptr;
  size_t bytes = 0;
  uint64_t form = 0;
};

/// The way of a call without slots, once all headers are there and all memory can be reached.
struct InPlace {
  /// Memory that this rank's peers would write to.
  Reachable (*memory)(const Call& call, int size);
  /// The least number of bytes for which it pays (Call::bytes).
  uint64_t least_bytes;
  /// The schedule that follows: `buffers` holds the start of each rank's memory, `bytes` its size.
  AnyDirect (*schedule)(const AnySchedule& staged, const PeerView& peers, const CallHeader& header,
                        size_t bytes, char* const* buffers);
};

extern const InPlace kMessageInPlace, kShortMessageInPlace, kListInPlace;

}  // namespace fastcomm
