// What a transport needs to find its peers: a key-value store that all ranks reach.
#pragma once

#include <cstdint>
#include <string>

#include "core/clock.h"

namespace fastcomm {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  /// Waits for the key. Raises Error(kTimeout) naming it at `deadline`.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
};

/// Agrees on a random number that names this attempt to form a group, so that keys which an earlier
/// group left in the same store are never taken for this one's. Rank 0 draws it and gives it to
/// every rank that shows a fresh token: a token of an earlier attempt is answered too, but nobody
/// waits for that answer. Raises Error(kTimeout) naming the ranks that did not arrive.
uint64_t agree_on_nonce(Bootstrap& store, int rank, int size, Deadline deadline);

/// 64 bits from the kernel.
uint64_t random_bits();

/// Sixteen hexadecimal digits.
std::string hex(uint64_t value);

}  // namespace fastcomm
