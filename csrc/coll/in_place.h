// Which calls need no slots where tensors lie in memory that every rank has mapped, and what of it they use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coll/call.h"
#include "coll/schedules.h"
#include "transport/peer_view.h"

namespace fastcomm {

/// The memory that the ranks of a call without slots must have mapped of each other, and how the tensors
/// lie in it. Nothing if `begin` is nullptr.
struct Reachable {
  char* begin = nullptr;
  size_t bytes = 0;
  uint64_t form = 0;
};

/// How a call does without slots, once all headers are there and all memory can be reached.
struct InPlace {
  /// What this rank's peers would write to.
  Reachable (*memory)(const Call& call, int size);
  /// The bytes from which it pays (Call::bytes).
  uint64_t least_bytes;
  /// The schedule that follows: `buffers` is where each rank's memory starts, `bytes` its size.
  AnyDirect (*schedule)(const AnySchedule& staged, const PeerView& peers, const CallHeader& header,
                        size_t bytes, char* const* buffers);
};

extern const InPlace kMessageInPlace, kShortMessageInPlace, kListInPlace;

}  // namespace fastcomm
