// One rank's messages to and from each rank, for schedules whose sizes are known in pairs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fastcomm {

/// Sizes are bytes; the index is the other rank. A rank's message to itself is copied.
struct Messages {
  struct Sent {
    const char* data = nullptr;
    uint64_t bytes = 0;
  };
  struct Expected {
    char* data = nullptr;
    uint64_t bytes = 0;
  };

  std::vector<Sent> sends;
  std::vector<Expected> receives;
  /// True if every peer gets the same bytes, the first of `sends`: they are staged once.
  bool same_for_all = false;
  /// For sizes that only the sender knows: returns the place for `bytes` from rank `from`. It then
  /// fills in data and bytes in `receives`, once.
  std::function<char*(int from, uint64_t bytes)> place;

  /// Blocks of the rank with the longest outbox, once known.
  uint64_t agreed_blocks = 0;

  Messages() = default;
  explicit Messages(int size)
      : sends(static_cast<size_t>(size)), receives(static_cast<size_t>(size)) {}

  /// Bytes that are staged for peers.
  uint64_t staged_bytes(int rank) const;
  /// One term per message sent, less one per message expected: the sum over all ranks is zero if
  /// their sizes fit each other (CallHeader::balance).
  uint64_t balance(int rank) const;
  /// "sends [0, 4] bytes, expects [4, 0]".
  std::string describe() const;
};

}  // namespace fastcomm
