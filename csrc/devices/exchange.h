// Copies and reductions among the devices of one process, as one operation: in which steps, and who
// waits for whom. devices/exchange_plan.h decides what goes into which round.
//
//   start    every rank marks what its stream was given before
//   round    stage    a rank copies to pinned memory what others cannot read where it lies
//            work     a rank pulls what it is to get, or reduces what it owns; directly wherever it
//                     reaches the memory, from and to pinned memory otherwise
//            fetch    a rank copies its results out of pinned memory
//   end      a rank whose memory others touched waits until they are done with it
//
// Where every rank reaches all memory that it needs there is one round, and of that only "work": one
// kernel a rank. Otherwise a round is what fits in half of the group's staging memory; the halves
// take turns, so one is filled while the other is read.
//
// Memory ordering. Between streams it is that of CUDA events alone (devices/device_set.h).
//   kReady     before a rank touches a peer's memory, it waits for what the peer was given before
//   kStaged    before it reads what a peer has staged
//   kWorked    before it fetches results that a peer has put in pinned memory
//   kDrained   before a half of staging is written again, in this operation or a later one
//   kFinished  before a rank goes on to whatever its caller gives it next
// So a caller only ever needs the rank's own stream: tensors written there before the call are
// read, and may be read, written or freed there after it.
//
// Cost, n ranks: start and end take a mark and a wait for each pair of ranks of which one touches the
// other's memory, or 2 (n - 1) waits if that is less. Bytes: a staged piece crosses the bus once to
// the host and once for each reader.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_guard.h"
#include "devices/device_set.h"
#include "devices/exchange_plan.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm {

/// Allocates nothing once warm. One thread at a time, under the group's mutex.
class Exchange {
 public:
  explicit Exchange(DeviceSet& group) : group_(group), size_(group.size()), plan_(group) {}

  /// Copies nothing yet.
  void add(const CopyJob& job) { plan_.add(job); }
  void add(const ReduceJob& job) { plan_.add(job); }

  /// Enqueues everything that was added, as one operation, and forgets it. `spec` is of the
  /// reductions; its numbers of sources and destinations are ignored. After an Error part of it may
  /// have been enqueued.
  void run(const Streams& streams, const ReduceSpec& spec);
  void run(const Streams& streams) { run(streams, ReduceSpec{}); }

 private:
  void begin(const Streams& streams, DeviceGuard& guard);
  void run_round(const Streams& streams, const ReduceSpec& spec, DeviceGuard& guard);
  void end(const Streams& streams, DeviceGuard& guard);
  void claim_half(int rank, const Streams& streams, DeviceGuard& guard);
  void launch_work(int rank, const ReduceSpec& spec, cudaStream_t stream);

  DeviceSet& group_;
  const int size_;
  ExchangePlan plan_;
  uint32_t waited_[kMaxLocalRanks] = {};  // bit p of r: rank r has waited for kReady of rank p
  bool all_meet_ = false;
  std::vector<ReduceSegment> segments_;
};

}  // namespace fastcomm
