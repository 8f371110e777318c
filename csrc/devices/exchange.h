// Copies and reductions among the devices of one process, over lists of tensors, each list as one
// operation: its steps and its waits. devices/exchange_plan.h divides the work into rounds.
//
//   start    every rank marks the work that its stream was given before
//   round    stage    a rank copies data that others cannot read in place to pinned memory
//            work     a rank pulls its data, or reduces its share; directly if it reaches the
//                     memory, from and to pinned memory otherwise
//            fetch    a rank copies its results out of pinned memory
//   end      a rank whose memory others touched waits until they are done with it
//
// If every rank reaches all memory that it needs there is one round, of "work" alone: one kernel
// per rank. Otherwise a round has as much data as fits in half of the group's staging memory; the
// halves take turns, so one is filled while the other is read.
//
// Memory ordering. Between streams it is that of CUDA events alone (devices/device_set.h).
//   kReady     before a rank touches a peer's memory, it waits for the peer's earlier work
//   kStaged    before it reads data that a peer has staged
//   kWorked    before it fetches results that a peer has put in pinned memory
//   kDrained   before a half of staging is written again, in this operation or a later one
//   kFinished  before a rank goes on to its caller's next work
// So a caller only ever needs the rank's own stream: tensors written there before the call are
// read, and may be read, written or freed there after it.
//
// Memory. A rank's pointers are memory of the rank's device; ranks on one device may share tensors.
// A destination may be the source at the same address; nothing else may overlap. Enabled peer
// access covers memory of cudaMalloc. If memory is mapped piece by piece (torch's expandable
// segments, cudaMallocAsync) the caller makes sure that it is mapped for the group's other devices
// too.
//
// Sums have the order of the fixed tree over the ranks, for any sizes of the tensors and ways of
// the data: the bits are the same.
//
// Cost, n ranks: start and end take a mark and a wait for each pair of ranks of which one touches
// the other's memory, or 2 (n - 1) waits if that is less. Bytes: a staged piece crosses the bus
// once to the host and once for each reader.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_guard.h"
#include "devices/device_set.h"
#include "devices/exchange_plan.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm {

using Sizes = std::vector<uint64_t>;  // of tensors, in bytes or elements as named
using RankSources = std::vector<std::vector<const char*>>;  // [rank][tensor]

/// Allocates nothing once warm. Any thread may call; calls on one group take turns. All calls only
/// enqueue, on one stream per rank (devices/device_set.h), and raise Error: not one stream per rank
/// (kInvalidArgument), no kernel (kUnsupported), CUDA fails (kSystem). After an error part of the
/// operation may have been enqueued.
class Exchange {
 public:
  /// `group` outlives this object.
  explicit Exchange(DeviceSet& group) : group_(group), size_(group.size()), plan_(group) {}

  void copy(const std::vector<CopyJob>& jobs, const Streams& streams);

  /// Reduces inputs[s][t] over the ranks s to outputs[t], in memory of the root. counts[t]
  /// elements. The numbers of sources and destinations in `spec` are ignored. Each rank reduces its
  /// slice of the list, so that all of them work and no link carries more than it must: (n - 1) / n
  /// of the bytes into each of n ranks, twice at the root.
  void reduce(const RankSources& inputs, const std::vector<char*>& outputs, const Sizes& counts,
              const ReduceSpec& spec, int root, const Streams& streams);

 private:
  void run(const Streams& streams, const ReduceSpec& spec);
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
