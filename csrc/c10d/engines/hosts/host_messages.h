// Messages of any size over several hosts: gather, scatter, all_to_all, all_gather of unequal
// sizes.
//
// Within a host they go through shared memory, between hosts from rank to rank. A rank knows what
// it sends and expects, and nothing of the others; so ranks in one place exchange, in their
// envelopes, what they send to the ranks of the other host and expect of them, and each host
// gathers what its ranks have got. Nothing is sent, and no tensor written, before a rank has found
// that its messages fit.
//
// Messages that are the same for all ranks, of sizes that all know, go once to each host
// (gather_in_chunks.h).
#pragma once

#include "c10d/engines/hosts/host_exchange.h"

namespace fastcomm {

void exchange_messages(HostCall& call, HostInside& inside, HostExchange& between);
void gather_uneven(HostCall& call, HostInside& inside, HostExchange& between);

}  // namespace fastcomm
