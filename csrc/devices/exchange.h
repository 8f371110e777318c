// Copies and reductions among the devices of one process, over lists of tensors: each list as one operation. In which
// steps, and who waits for whom. devices/exchange_plan.h decides what goes into which round.
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
// Memory. A rank's pointers are memory of the rank's device; ranks on one device may share tensors. A destination may
// be the source at the same address; nothing else may overlap. Enabled peer access covers what cudaMalloc gives. Of
// memory that is mapped piece by piece (torch's expandable segments, cudaMallocAsync) the caller makes sure that it is
// mapped for the group's other devices too.
//
// Sums have the order of the fixed tree over the ranks, whatever the sizes of the tensors and the way the data goes: the
// bits are the same.
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

using Sizes = std::vector<uint64_t>;  // of tensors, in bytes or elements as named
using RankSources = std::vector<std::vector<const char*>>;  // [rank][tensor]

/// Allocates nothing once warm. Any thread may call; calls on one group take turns. All calls only enqueue, on one
/// stream a rank (devices/device_set.h), and raise Error: not one stream a rank (kInvalidArgument), no kernel
/// (kUnsupported), CUDA fails (kSystem). After one part of the operation may have been enqueued.
class Exchange {
 public:
  /// `group` outlives this.
  explicit Exchange(DeviceSet& group) : group_(group), size_(group.size()), plan_(group) {}

  void copy(const std::vector<CopyJob>& jobs, const Streams& streams);

  /// The reduction of inputs[s][t] over the ranks s to outputs[t], in memory of the root. counts[t] elements. The
  /// numbers of sources and destinations of `spec` are not read. Each rank reduces its slice of the list, so that all of
  /// them work and no link carries more than it must: (n - 1) / n of the bytes into each of n ranks, twice at the root.
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
