// Sums over several hosts: each host adds its ranks up, and all make the same sum of the partials,
// in the order of the group's tree (coll/host_layout.h). So the bits are those of one host with as
// many ranks.
//
// all_reduce goes one of two ways, by the size of a partial:
//   short   the host's first rank gets the partial, exchanges it with the first ranks of the other
//           hosts, and gives the result to the host
//   long    in chunks, three under way: each rank gets a slice of the partial, exchanges it with
//           the ranks in its place, and the host gathers the results. Two hosts exchange whole
//           slices; more of them, and types that travel as wider ones, divide each slice among the
//           hosts, each of which sums its part and sends the others the result.
// Bytes that a host sends, of S: short (H - 1) S; long S for two hosts, else 2 (H - 1) / H S.
//
// reduce goes the same two ways, by the ranks in the root's place or by slices. A host other than the
// root's sends S.
//
// reduce_scatter goes one way: a rank gets its host's partials of its own part and of those of the
// ranks in its place, sends each its own, and sums what it gets. A host sends (H - 1) / H of its
// input, in the type of partials. What fits envelopes travels in them.
#pragma once

#include "c10d/engines/hosts/host_exchange.h"

namespace fastcomm {

/// Partials of at most so many bytes go the short way.
constexpr uint64_t kShortSumBytes = 64 * 1024;
/// Of a message in chunks: the most bytes of one, as partials. Memory follows from it, also with
/// many hosts.
constexpr uint64_t kHostChunkBytes = 4 * 1024 * 1024;
/// The bytes of a chunk of a message of `total`. Nothing is sent while the first chunk is summed in
/// the hosts, and while the last one's results arrive: so a message has several chunks, as long as
/// they are not so short that their steps set the time.
inline uint64_t chunk_bytes(uint64_t total) {
  constexpr uint64_t kChunks = 16, kLeast = 1024 * 1024;
  const uint64_t wanted = total / kChunks / kLeast * kLeast;
  return smaller(wanted < kLeast ? kLeast : wanted, kHostChunkBytes);
}

void sum_to_all(HostCall& call, HostInside& inside, HostExchange& between);
void sum_to_root(HostCall& call, HostInside& inside, HostExchange& between);
void sum_parts(HostCall& call, HostInside& inside, HostExchange& between);

}  // namespace fastcomm
