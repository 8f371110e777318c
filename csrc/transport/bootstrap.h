// The key-value store by which a transport finds its peers; all ranks reach it.
#pragma once

#include <cstdint>
#include <string>

#include "core/clock.h"

namespace fastcomm {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  /// Start of the warning of a long wait.
  std::string label = "fastcomm: ";
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  /// Waits for the key. Raises Error(kTimeout) with its name at `deadline`.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
};

/// Values shared by the ranks of one attempt to form a group.
struct Agreement {
  uint64_t nonce;
  std::string told;  // by rank 0
};

/// Agrees on a random number that names this attempt to form a group, so that no key of an earlier
/// group in the same store is taken for this group's. Rank 0 draws the number and gives it to every
/// rank that shows a fresh token: a token of an earlier attempt is answered too, but nobody waits
/// for that answer. Every rank also gets rank 0's `told`. Raises Error(kTimeout) with the ranks
/// that did not arrive, Error(kInvalidArgument) if ranks differ about the group's size,
/// Error(kSystem) if the store holds nonsense, or, on every rank, if one rank has a `problem` that
/// keeps it from the group.
Agreement agree(Bootstrap& store, int rank, int size, const std::string& told, Deadline deadline,
                const std::string& problem = "");

/// 64 bits from the kernel.
uint64_t random_bits();

/// Sixteen hexadecimal digits.
std::string hex(uint64_t value);

}  // namespace fastcomm
