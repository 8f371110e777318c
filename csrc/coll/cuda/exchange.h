// Copies and reductions among the devices of one process, as one operation: who waits for whom, what
// goes directly and what through pinned memory, in how many rounds.
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
// Memory ordering. Between streams it is that of CUDA events alone (transport/local/device_group.h).
//   kReady     before a rank touches a peer's memory, it waits for what the peer was given before
//   kStaged    before it reads what a peer has staged
//   kWorked    before it fetches results that a peer has put in pinned memory
//   kDrained   before anybody writes to a half of staging again, in this operation or a later one
//   kFinished  before a rank goes on to whatever its caller gives it next
// So a caller only ever needs the rank's own stream: tensors written there before the call are
// read, and may be read, written or freed there after it.
//
// Cost, n ranks: start and end take a mark and a wait for each pair of ranks of which one touches the
// other's memory, or 2 (n - 1) waits if that is less. Bytes: a piece that is staged crosses the bus
// once to the host and once for each reader.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/multi_copy.h"
#include "kernels/cuda/multi_reduce.h"
#include "transport/local/device_group.h"

namespace fastcomm {

static_assert(kMaxLocalRanks <= kMaxReduceSources, "a reduction takes a source of every rank");

/// `bytes` at `src`, in memory of rank `from`, to dst[r] in memory of each rank r that is not null.
struct CopyJob {
  int from;
  const char* src;
  uint64_t bytes;
  char* dst[kMaxLocalRanks];
};

/// `count` elements of sources[r] in memory of each rank r, reduced by rank `owner`, to dst[r] in
/// memory of each rank r that is not null. A destination may be the source of its rank. Jobs of one
/// owner have destinations on the same ranks.
struct ReduceJob {
  int owner;
  uint64_t count;
  const char* sources[kMaxLocalRanks];
  char* dst[kMaxLocalRanks];
};

/// Keeps its lists from one operation to the next, so that it allocates nothing once warm. One
/// thread at a time, under the group's mutex.
class Exchange {
 public:
  explicit Exchange(DeviceGroup& group);

  /// Copies nothing yet. Empty jobs, and copies onto themselves, are left out.
  void add(const CopyJob& job);
  void add(const ReduceJob& job);

  /// Enqueues everything that was added, as one operation, and forgets it. `spec` is of the
  /// reductions; its numbers of sources and destinations are ignored. After an Error part of it may
  /// have been enqueued.
  void run(const Streams& streams, const ReduceSpec& spec);
  void run(const Streams& streams) { run(streams, ReduceSpec{}); }

  /// Forgets what was added.
  void clear();

 private:
  /// What one rank is responsible for: staging its copies, or doing its reductions.
  struct Lane {
    std::vector<CopyJob> copies;
    std::vector<ReduceJob> reductions;
    size_t job = 0;     // copies come first
    uint64_t done = 0;  // bytes or elements of that job
    uint64_t staged_bytes = 0;
    bool finished() const { return job == copies.size() + reductions.size(); }
  };
  /// What one rank's kernels do in a round.
  struct Work {
    std::vector<CopySegment> stage, pull, fetch;
    std::vector<const void*> sources;  // of reductions, num_sources for each
    std::vector<void*> destinations;
    std::vector<uint64_t> counts;
    int num_destinations = 0;
    uint32_t staged_by = 0;   // bit s: reads what rank s has staged
    uint32_t fetch_from = 0;  // bit s: fetches results of rank s
    bool stages_results = false;
    bool empty() const { return pull.empty() && counts.empty(); }
    void clear();
  };
  /// A lane's part of a half of staging memory.
  struct Room {
    char* at;
    char* end;
  };

  bool direct(int rank, int peer) const { return direct_[rank] >> peer & 1; }
  void look_at_jobs(const ReduceSpec& spec);
  void fill_round(const ReduceSpec& spec, const Staging& staging);
  void fill_lane(Lane& lane, Room room, const ReduceSpec& spec);
  uint64_t place(const CopyJob& job, uint64_t done, Room& room);
  uint64_t place(const ReduceJob& job, uint64_t done, Room& room, const ReduceSpec& spec);
  void begin(const Streams& streams, DeviceGuard& guard);
  void run_round(const Streams& streams, const ReduceSpec& spec, DeviceGuard& guard);
  void end(const Streams& streams, DeviceGuard& guard);
  void claim_half(int rank, const Streams& streams, DeviceGuard& guard);
  void launch_work(int rank, const ReduceSpec& spec, cudaStream_t stream);

  DeviceGroup& group_;
  const int size_;
  uint32_t direct_[kMaxLocalRanks] = {};   // bit p of r: rank r reaches the memory of rank p
  uint32_t touches_[kMaxLocalRanks] = {};  // bit p of r: rank r's work touches memory of rank p
  uint32_t waited_[kMaxLocalRanks] = {};   // of those, for which it has waited already
  bool all_meet_ = false;
  uint64_t staged_bytes_ = 0;  // of the fullest lane
  int staging_lanes_ = 0;
  std::vector<Lane> lanes_;
  std::vector<Work> work_;
  std::vector<ReduceSegment> segments_;
};

}  // namespace fastcomm
