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
// Hosts that are not one subtree each go a long way of their own (trees_in_chunks.h), whatever the
// operation.
//
// reduce goes the same two ways. A host other than the root's sends S.
//
// reduce_scatter goes one way: a rank gets its host's partials of its own part and of those of the
// ranks in its place, sends each its own, and sums what it gets. A host sends (H - 1) / H of its
// input, in the type of partials. What fits envelopes travels in them.
#pragma once

#include "c10d/engines/hosts/host_exchange.h"

namespace fastcomm {

void sum_to_all(HostCall& call, HostInside& inside, HostExchange& between);
void sum_to_root(HostCall& call, HostInside& inside, HostExchange& between);
void sum_parts(HostCall& call, HostInside& inside, HostExchange& between);

}  // namespace fastcomm
