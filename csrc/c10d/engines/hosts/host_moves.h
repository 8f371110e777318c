// all_gather, broadcast and barrier over several hosts.
//
// all_gather: each rank sends its input to the ranks in its place, straight to their outputs or in
// the envelope, and every host gathers what its ranks have got. A host sends (H - 1) times its
// ranks' inputs.
//
// broadcast, long: the root's host gives each of its ranks the message, which a rank needs anyway;
// each sends its slice to the ranks in its place, and every other host gathers the slices. Short:
// the first ranks of the hosts move it. The root's host sends (H - 1) S.
//
// What goes in chunks begins with a barrier inside the host: what a rank sends lands in users'
// tensors, so its own host agrees on the call first.
//
// barrier: the host's ranks meet, then the first ranks of the hosts exchange envelopes, and then
// let the others go.
#pragma once

#include "c10d/engines/hosts/host_exchange.h"

namespace fastcomm {

void gather_to_all(HostCall& call, HostInside& inside, HostExchange& between);
void spread(HostCall& call, HostInside& inside, HostExchange& between);
void meet(HostCall& call, HostInside& inside, HostExchange& between);

}  // namespace fastcomm
