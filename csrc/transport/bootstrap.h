// What a transport needs to find its peers: a key-value store that all ranks reach.
#pragma once

#include <cstdint>
#include <string>

#include "core/clock.h"

namespace fastcomm {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  /// What a warning of a long wait begins with.
  std::string label = "fastcomm: ";
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  /// Waits for the key. Raises Error(kTimeout) naming it at `deadline`.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
};

/// What the ranks of an attempt to form a group have in common.
struct Agreement {
  uint64_t nonce;
  std::string told;  // by rank 0
};

/// Agrees on a random number that names this attempt to form a group, so that keys which an earlier
/// group left in the same store are never taken for this one's. Rank 0 draws it and gives it to
/// every rank that shows a fresh token: a token of an earlier attempt is answered too, but no one
/// waits for that answer. With it every rank gets rank 0's `told`. Raises Error(kTimeout) naming the
/// ranks that did not arrive, Error(kInvalidArgument) where ranks differ about the group's size,
/// Error(kSystem) where the store holds nonsense, or, on every rank, where one has a `problem` that
/// keeps it from the group.
Agreement agree(Bootstrap& store, int rank, int size, const std::string& told, Deadline deadline,
                const std::string& problem = "");

/// 64 bits from the kernel.
uint64_t random_bits();

/// Sixteen hexadecimal digits.
std::string hex(uint64_t value);

}  // namespace fastcomm
