// Groups of processes over shared memory, for tests that form some.
#pragma once

#include "coll/slot_sizes.h"
#include "fork_world.h"
#include "transport/shm/forming.h"

namespace fastcomm::testing {

inline constexpr GroupConfig kConfig{4096, 65536, 16384};  // payload, block, rotation bytes

inline size_t scratch_of(const GroupConfig& config, int size) {
  return scratch_layout({config.payload_bytes, config.block_bytes, config.rotation_bytes}, size)
      .total();
}

/// A deadline far beyond what a step of a test takes.
inline Deadline soon() { return Clock::now() + std::chrono::seconds(30); }

inline ShmTransportResult form(Bootstrap& store, int rank, int size, Endpoint* endpoint,
                               const std::string& why_not = "", Deadline deadline = soon()) {
  return make_shm_transport(store, rank, size, endpoint, why_not, kConfig, scratch_of, deadline);
}

}  // namespace fastcomm::testing
