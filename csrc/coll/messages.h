// What one rank sends to each rank and gets from each, for schedules whose sizes are known in pairs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fastcomm {

/// Sizes are bytes; index: the other rank. What a rank sends to itself is copied.
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
  /// Every peer gets the same bytes, the first of `sends`: they are staged once.
  bool same_for_all = false;
  /// For sizes that only the sender knows: where that many bytes from that rank shall go. Then what
  /// `receives` says of data and bytes is filled in with it, once.
  std::function<char*(int from, uint64_t bytes)> place;

  /// Blocks of the rank that sends the most, once that is known.
  uint64_t agreed_blocks = 0;

  Messages() = default;
  explicit Messages(int size)
      : sends(static_cast<size_t>(size)), receives(static_cast<size_t>(size)) {}

  /// Bytes that are staged for peers.
  uint64_t staged_bytes(int rank) const;
  /// One term for each message that is sent, less one for each that is expected: all ranks together
  /// come to zero where their sizes fit each other (CallHeader::balance).
  uint64_t balance(int rank) const;
  /// "sends [0, 4] bytes, expects [4, 0]".
  std::string describe() const;
};

}  // namespace fastcomm
