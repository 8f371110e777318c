// gather_shards: every rank has a part of each tensor of a list, and gets those of the others, as a
// sharded optimizer needs after its step, with the parameters in place.
//
// Pipelined over the blocks of a list whose units are dealt to their owners. Cost: B + 1 waits; N/n
// bytes staged, (n-1)/n N read from peers.
//   step 0   nothing (see fused_all_reduce.h)
//   step k   stage block k-1 of this rank's shards; copy block k-2 of the peers' shards out
//
// Slot reuse: as in all_gather.h. A rank writes only elements that its peers own.
#pragma once

#include <memory>

#include "coll/gradient_list.h"
#include "coll/schedule.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct GatherShards {
  const PeerView& peers;  // outlives the schedule
  std::shared_ptr<GradientList> list;

  uint64_t payload_bytes() const { return kInBlocks; }
  uint32_t steps() const { return static_cast<uint32_t>(list->blocks()) + 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    if (step >= 1 && step - 1 < list->blocks()) {
      each_run(step - 1, peers.rank, [&](char* data, char* slot, uint64_t bytes) {
        executor.stage_span(slot, data, bytes);
      });
    }
    if (step >= 2) {
      for (int hop = 1; hop < peers.size; ++hop) {  // start after this rank: spread the readers
        each_run(
            step - 2, (peers.rank + hop) % peers.size,
            [&](char* data, char* slot, uint64_t bytes) { executor.copy_span(data, slot, bytes); });
      }
    }
  }

 private:
  /// Memory of `owner` in block `b`, and its place in the stage slot.
  template <class Copy>
  void each_run(uint64_t b, int owner, const Copy& copy) const {
    char* slot = peers.scratch[owner] + list->stage_at(b);
    const uint32_t end = list->end(b, owner);
    uint64_t count = 0;
    for (uint32_t u = list->begin(b, owner), next; u < end; u = next) {
      next = list->run_from(u, end, count);
      const GradientUnit& unit = list->unit(u);
      copy(list->data_of(unit), slot + unit.result,
           count * dtype_size(list->tensor_of(unit).dtype));
    }
  }
};

}  // namespace fastcomm
