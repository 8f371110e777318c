// Fused reductions of lists of gradients over several hosts, and shards gathered.
//
// The gradients of one type are summed as if they lay in a row, the long way of host_sum.h; each
// rank packs its terms, unpacks the sums, and computes all norms. Gradients of fp32 that travel as
// 16 bits are rounded to them as on one host, and once more as each host's partial; without that,
// the bits are those of one host. Where ranks own shards, each gets all of the sum.
//
// Shards are gathered as messages of unequal sizes (host_messages.h).
#pragma once

#include "c10d/engines/hosts/host_exchange.h"

namespace fastcomm {

void sum_lists(HostCall& call, HostInside& inside, HostExchange& between);
void gather_shards(HostCall& call, HostInside& inside, HostExchange& between);

}  // namespace fastcomm
