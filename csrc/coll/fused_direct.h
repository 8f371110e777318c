// fused_all_reduce without staging, for lists that lie alike in memory which every rank has mapped:
// the buckets of DistributedDataParallel.
//
//   step 0   reduce this rank's units of all lists, and write them into all lists; their norms go
//            to this rank's scratch
//   step 1   read the peers' norms
//
// Cost: 1 wait; N bytes read and N written by each rank, (n-1)/n of both in peers' lists.
//
// It runs after the wait in which all headers are read, as AllReduceDirect does, with the same
// memory ordering. Norms lie at the place of the staged schedule's slots. They are written after
// that wait, so every rank has left the previous operation; a later operation overwrites them after
// its own such wait, so every rank has left this one.
#pragma once

#include <cstring>
#include <memory>

#include "coll/fused_unit.h"
#include "coll/gradient_list.h"
#include "coll/schedule.h"
#include "kernels/stage_copy.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct FusedDirect {
  const PeerView& peers;  // outlives the schedule
  std::shared_ptr<GradientList> list;
  char* bases[kMaxRanks];  // start of each rank's list

  uint32_t steps() const { return 2; }
  WaitFor wait_for(uint32_t) const { return WaitFor{0, peers.size}; }

  void run(CpuExecutor& executor, uint32_t step) const {
    if (step == 0) {
      reduce(executor);
    } else {
      for (int peer = 0; peer < peers.size; ++peer) {
        if (peer != peers.rank) read_norms(peer);
      }
    }
  }

 private:
  void reduce(CpuExecutor& executor) const {
    char* norms = peers.scratch[peers.rank] + list->stage_at(0);
    list->for_units_of(peers.rank, [&](uint32_t u) {
      const GradientUnit& unit = list->unit(u);
      const uint64_t at = static_cast<uint64_t>(list->data_of(unit) - bases[peers.rank]);
      const auto source = [&](int peer) -> char* { return bases[peer] + at; };
      const BlockNorm norm = reduce_unit(executor, *list, u, peers.size, source, source(behind(1)));
      for (int hop = 2; hop < peers.size; ++hop) {
        executor.stage_span(source(behind(hop)), source(peers.rank), list->wire_bytes(unit),
                            kToTensor);
      }
      std::memcpy(norms, &norm, sizeof(norm));
      norms += sizeof(norm);
    });
  }

  void read_norms(int peer) const {
    const char* norms = peers.scratch[peer] + list->stage_at(0);
    list->for_units_of(peer, [&](uint32_t u) {
      BlockNorm norm;
      std::memcpy(&norm, norms, sizeof(norm));
      list->note(u, norm);
      norms += sizeof(norm);
    });
  }

  /// The rank `hop` places after this one: every rank starts at a different peer.
  int behind(int hop) const { return (peers.rank + hop) % peers.size; }
};

}  // namespace fastcomm
