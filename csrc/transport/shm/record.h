// Values that ranks exchange through the store while they form a group, and their parsers.
//
// Anyone who reaches the store may write anything there. Every value is checked for its length and
// its bounds before it is used; an invalid one raises Error(kSystem) with the rank that it came
// from.
#pragma once

#include <cstdint>
#include <string>

#include "transport/cores.h"
#include "transport/shm/handshake.h"

namespace fastcomm {

/// Values that the ranks of a group must hold in common. Rank 0's apply to all: ranks that chose an
/// algorithm by different numbers would deadlock.
struct GroupConfig {
  uint64_t payload_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t rotation_bytes = 0;
  uint64_t payload_by = 0;  // ChosenBy
};

/// A rank's identity, and the place of its memory.
struct Record {
  EndpointId id;
  int32_t pid;
  uint32_t version;
  uint64_t window;    // offset in the segment
  uint64_t room;      // bytes of each segment that this rank can map
  CoreSet cores;      // on which this rank may run
  char listener[64];  // empty: no shared memory here
  char why_not[256];
};

/// A Record or a GroupConfig, as it travels.
template <class Value>
std::string to_bytes(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

/// Rank 0's configuration.
GroupConfig parse_config(const std::string& bytes);

/// A rank's record; its texts end with a zero byte. The caller checks the version, since a group
/// with an older rank is no error.
Record parse_record(const std::string& bytes, int peer);

/// Raises unless `mask` holds one '0' or '1' for each of `size` ranks.
void check_mask(const std::string& mask, int size, int peer);

}  // namespace fastcomm
