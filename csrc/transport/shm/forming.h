// Forms a group over shared memory from processes of one host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/bootstrap.h"
#include "transport/shm/endpoint.h"
#include "transport/shm/record.h"
#include "transport/transport.h"

namespace fastcomm {

struct ShmTransportResult {
  std::unique_ptr<Transport> group;  // nullptr: the ranks do not all share memory
  std::string reason;                // why there is no group, the same text on every rank
  GroupConfig config;                // rank 0's
  uint64_t nonce = 0;                // the group's, or of the attempt to form it
  /// If there is no group, though every rank has memory to share: `shares[a][b]` is '1' if rank a
  /// reaches the memory of rank b. The same on every rank.
  std::vector<std::string> shares;
};

/// Forms a group, collectively. Ranks find out by trying whether they share memory: each writes the
/// group's nonce into its own window, hands its segment over, and reads the nonce in the peer's.
/// All ranks come to the same result. `scratch_bytes(config, size)` gives the size of a window once
/// rank 0's configuration is known. `endpoint` is nullptr if this process has none, for the reason
/// `why_not`. Raises Error(kTimeout) with the ranks that did not arrive, Error(kSystem) if the
/// store fails or holds nonsense, Error(kInvalidArgument) if ranks differ about the size.
ShmTransportResult make_shm_transport(Bootstrap& store, int rank, int size, Endpoint* endpoint,
                                      const std::string& why_not, const GroupConfig& wanted,
                                      size_t (*scratch_bytes)(const GroupConfig&, int size),
                                      Deadline deadline);

}  // namespace fastcomm
