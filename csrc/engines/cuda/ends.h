// Ends of kernels on other ranks, if tensors may be used in place: in memory of the rank that its
// peers have mapped besides its window (transport/ipc/peer_pool.h), or else in that window. No host
// knows the choice of the others. So a rank states it in the header of its call, and the opening
// meeting looks it up, for the kernel after it:
//
//   CallHeader::where   the tensor that peers read,
//   CallHeader::form    the one that they write, as places in the rank's pool; 0: in its window
//
// Failure. If a rank gives up while a peer goes on, the peer's slice may still arrive in a result
// that the rank has overwritten with NaN; its own slice stays NaN, and the failure is recorded.
//
// Memory ordering: headers as in engines/cuda/meeting.h; the addresses are written and read by
// successive kernels of one stream.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "engines/cuda/meeting_place.h"

namespace fastcomm {

/// Tensors whose start is a multiple of this many bytes are used in place: kernels read packs of
/// them.
constexpr uint64_t kPlaceAlignment = 16;

/// A place in a rank's pool: a segment, and bytes from its start.
constexpr int kPlaceBits = 48;
constexpr uint64_t place_in_pool(int segment, uint64_t offset) {
  return (static_cast<uint64_t>(segment) + 1) << kPlaceBits | offset;
}

/// Memory of a rank that a kernel reads or writes.
struct PeerEnd {
  const char* staged;  // place in a window; the final one if `rank` is -1: this rank's own
  uint64_t at;         // in a pool: bytes from the start of that rank's tensor
  int32_t rank;
  bool is_result;  // of the tensor that is written
};

/// The most ends of one kernel: sources and destinations.
constexpr int kMostEnds = 2 * kMaxDeviceRanks;

/// Segments for an opening's look-ups, and room for their results. In device memory.
struct EndsPlace {
  char* const* segments;  // [segment * size + rank]: its start
  int count;              // of segments
  uint64_t* found;        // kMostEnds addresses
};

}  // namespace fastcomm
