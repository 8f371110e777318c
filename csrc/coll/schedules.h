// All schedules as one type, for an operation to hold.
#pragma once

#include <variant>

#include "coll/all_gather.h"
#include "coll/all_reduce.h"
#include "coll/all_reduce_direct.h"
#include "coll/all_to_all_v.h"
#include "coll/barrier.h"
#include "coll/broadcast.h"
#include "coll/fused_all_reduce.h"
#include "coll/fused_direct.h"
#include "coll/gather_shards.h"
#include "coll/reduce_scatter.h"

namespace fastcomm {

/// The schedule of one rank alone: nothing is exchanged.
struct Nothing {
  uint64_t payload_bytes() const { return 0; }
  uint32_t steps() const { return 1; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, 0}; }
  void run(CpuExecutor&, uint32_t) const {}
};

using AnySchedule =
    std::variant<Nothing, Barrier, AllReduceOneShot, AllReduceTwoShot, BroadcastOneShot,
                 BroadcastPipelined, AllGatherOneShot, AllGatherPipelined, ReduceScatterOneShot,
                 ReduceScatterPipelined, FusedAllReduce, GatherShards, AllToAllV>;

/// Schedules to which an operation may turn once all headers are there. Each has kDirectSteps.
using AnyDirect = std::variant<AllReduceDirect, FusedDirect>;
constexpr uint32_t kDirectSteps = 2;

}  // namespace fastcomm
