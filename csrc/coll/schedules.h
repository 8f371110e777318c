// Which schedule a call has: one line for each algorithm of each operation.
#pragma once

#include <cstdint>
#include <variant>

#include "coll/all_gather.h"
#include "coll/all_reduce.h"
#include "coll/barrier.h"
#include "coll/broadcast.h"
#include "coll/call.h"
#include "coll/fused_all_reduce.h"
#include "coll/gather_shards.h"
#include "coll/reduce_scatter.h"
#include "coll/select.h"
#include "kernels/reduce_cpu.h"
#include "transport/peer_view.h"

namespace fastcomm {

using AnySchedule =
    std::variant<std::monostate, Barrier, AllReduceOneShot, AllReduceTwoShot, BroadcastOneShot,
                 BroadcastPipelined, AllGatherOneShot, AllGatherPipelined, ReduceScatterOneShot,
                 ReduceScatterPipelined, FusedAllReduce, GatherShards>;

/// The schedule of a call. monostate: nothing is exchanged (one rank).
AnySchedule make_schedule(const Call& call, const PeerView& peers, const GroupTraits& group,
                          Algorithm algorithm, uint64_t sequence);

/// The reduction of a call's elements; nullptr where nothing is reduced, or in several types.
ReduceFunction reduction_of(const Call& call);

/// What a group of one rank has to do: at most a copy, and a multiplication.
void run_alone(const Call& call);

}  // namespace fastcomm
