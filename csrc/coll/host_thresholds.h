// Limits by which a group over several hosts cuts and sends its messages. Equal on all ranks, which
// take rank 0's when the group forms: memory, and the lengths of messages, follow from them.
#pragma once

#include <cstdint>
#include <string>

#include "core/tuning.h"

namespace fastcomm {

struct HostThresholds {
  static constexpr uint64_t kShortBytes = 64 * 1024;            // by default
  static constexpr uint64_t kMostChunkBytes = 4 * 1024 * 1024;  // likewise
  static constexpr uint64_t kLeastChunkBytes = 1024 * 1024;     // likewise
  /// Messages and partials of at most so many bytes go by the first ranks of the hosts. A power of
  /// two, since early data has as much memory as its kind is long (HostExchange::expect_early).
  uint64_t short_bytes = kShortBytes;
  /// Of a longer message: the bytes of a chunk, as partials. 0: by the message.
  uint64_t chunk_bytes = 0;
  ChosenBy short_by = ChosenBy::kDefault, chunk_by = ChosenBy::kDefault;

  /// The bytes of a chunk of a message of `total`.
  uint64_t chunk_of(uint64_t total) const;
  /// For `explain`: "short up to 65536 bytes (by default), ...".
  std::string described() const;

  /// For the other ranks, on one line.
  std::string as_text() const;
  /// The defaults, if the text is none of as_text() or has values that no setting could have: those
  /// of another version of this library.
  static HostThresholds from_text(const std::string& text);
};

/// For `hosts` of `ranks` ranks each: set by the environment, else as tuned (core/tuning.h), else
/// by default.
HostThresholds choose_host_thresholds(int hosts, int ranks);

}  // namespace fastcomm
