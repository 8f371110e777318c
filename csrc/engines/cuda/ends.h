// Where kernels find what they read and write on other ranks, if those may use tensors in place: in memory of
// the rank that its peers have mapped besides its window (transport/ipc/peer_pool.h), or else in that window.
// No host knows which it is on the others. So a rank says it in the header of its call, and the meeting that
// opens looks it up, for the kernel after it:
//
//   CallHeader::where   the tensor that peers read,
//   CallHeader::form    the one that they write, as places in the rank's pool; 0: in its window
//
// Failure. If a rank gives up while a peer goes on, the peer's slice may still arrive in a result that the
// rank has overwritten with NaN; its own slice stays NaN, and the failure is recorded.
//
// Memory ordering: headers as in engines/cuda/meeting.h; the addresses are written and read by successive
// kernels of one stream.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "engines/cuda/meeting_place.h"

namespace fastcomm {

/// Tensors whose start is a multiple of this many bytes are used in place: kernels read packs of them.
constexpr uint64_t kPlaceAlignment = 16;

/// A place in a rank's pool: a segment, and bytes from its start.
constexpr int kPlaceBits = 48;
constexpr uint64_t place_in_pool(int segment, uint64_t offset) {
  return (static_cast<uint64_t>(segment) + 1) << kPlaceBits | offset;
}

/// What a kernel reads or writes on a rank.
struct PeerEnd {
  const char*
      staged;   // where it is in a window; with `rank` -1, where it is: it is this rank's own
  uint64_t at;  // in a pool: bytes from the start of that rank's tensor
  int32_t rank;
  bool is_result;  // of the tensor that is written
};

/// The most ends of one kernel: sources and destinations.
constexpr int kMostEnds = 2 * kMaxDeviceRanks;

/// Where an opening finds segments, and leaves what it finds. In device memory.
struct EndsPlace {
  char* const* segments;  // [segment * size + rank]: its start
  int count;              // of segments
  uint64_t* found;        // kMostEnds addresses
};

}  // namespace fastcomm
