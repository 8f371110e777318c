// The jobs of one exchange as work of its ranks, round by round: each rank's copies and reductions,
// and the places of data that goes through pinned memory. Arithmetic alone: devices/exchange.h
// defines a round, and enqueues it.
//
// A rank has a lane of jobs: those whose data it stages, or that it reduces. Every lane that has
// something to stage gets an equal share of a round's staging memory, at least the size of the
// smallest piece, and puts as much of its jobs there as fits; a lane that gets none waits for a
// later round. Lanes that stage nothing are done in the first round.
#pragma once

#include <cstdint>
#include <vector>

#include "devices/device_set.h"
#include "kernels/cuda/multi_copy.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm {

static_assert(kMaxLocalRanks <= kMaxReduceSources, "a reduction takes a source of every rank");

/// `bytes` at `src`, in memory of rank `from`, to dst[r] in memory of each rank r that is not null.
struct CopyJob {
  int from;
  const char* src;
  uint64_t bytes;
  char* dst[kMaxLocalRanks];
};

/// `count` elements of sources[r] in memory of each rank r, reduced by rank `owner`, to `dst` in
/// memory of rank `to`, which may be that rank's source.
struct ReduceJob {
  int owner;
  uint64_t count;
  const char* sources[kMaxLocalRanks];
  int to;
  char* dst;
};

/// A rank as a member of a set.
inline uint32_t rank_bit(int rank) { return uint32_t{1} << rank; }

/// Calls `use(rank)` for each rank of a set.
template <class Use>
void for_each_rank(uint32_t ranks, const Use& use) {
  for (; ranks != 0; ranks &= ranks - 1) use(__builtin_ctz(ranks));
}

/// One rank's work in a round.
struct RoundWork {
  std::vector<CopySegment> stage, pull, fetch;
  std::vector<const void*> sources;  // of reductions, one per rank for each
  std::vector<void*> destinations;   // one for each
  std::vector<uint64_t> counts;
  uint32_t staged_by = 0;   // bit s: reads data that rank s has staged
  uint32_t fetch_from = 0;  // bit s: fetches results of rank s
  bool stages_results = false;
  bool empty() const { return pull.empty() && counts.empty(); }
  void clear();
};

/// Staging memory that is not taken yet.
struct Room {
  char* at = nullptr;
  char* end = nullptr;
  uint64_t left() const { return end - at; }
};

/// Keeps its lists from one operation to the next, so that it allocates nothing once warm.
class ExchangePlan {
 public:
  explicit ExchangePlan(const DeviceSet& group);

  /// Empty jobs, and copies onto themselves, are left out.
  void add(const CopyJob& job);
  void add(const ReduceJob& job);

  /// All jobs have been added; `spec` is that of the reductions. The ranks' access to each other is
  /// asked now, and holds for the whole operation.
  void begin(const ReduceSpec& spec);

  /// After begin(). Bit p: kernels of `rank` touch memory of rank p in place.
  uint32_t touches(int rank) const { return touches_[rank]; }
  /// After begin(). Staging memory for one round with everything; 0 if nothing is staged.
  uint64_t staging_bytes() const;

  /// True if something is in no round yet.
  bool unfinished() const;
  /// Makes the next round, which may stage in `half`.
  void next_round(Room half);
  /// The work of `rank` in this round.
  const RoundWork& work(int rank) const { return work_[rank]; }

  /// Forgets all jobs.
  void clear();

 private:
  struct Lane {
    std::vector<CopyJob> copies;
    std::vector<ReduceJob> reductions;
    size_t job = 0;     // copies come first
    uint64_t done = 0;  // bytes or elements of that job
    uint64_t staged_bytes = 0;
    bool finished() const { return job == copies.size() + reductions.size(); }
  };

  /// The part of a job that goes through staging memory.
  struct Staged {
    uint64_t slots = 0;  // of each piece
    uint64_t bytes = 0;  // per byte that is copied, or per element
    uint64_t total(uint64_t count) const;
    uint64_t most(uint64_t wanted, const Room& room) const;
  };

  bool direct(int rank, int peer) const { return direct_[rank] >> peer & 1; }
  Staged staged(const CopyJob& job) const;
  Staged staged(const ReduceJob& job) const;
  void fill(Lane& lane, Room room);
  uint64_t place(const CopyJob& job, uint64_t done, Room& room);
  uint64_t place(const ReduceJob& job, uint64_t done, Room& room);

  const DeviceSet& group_;
  const int size_;
  ReduceSpec spec_{};
  uint32_t direct_[kMaxLocalRanks] = {};  // bit p of r: rank r reaches the memory of rank p
  uint32_t touches_[kMaxLocalRanks] = {};
  uint64_t staged_bytes_ = 0;  // of the fullest lane
  int staging_lanes_ = 0;
  std::vector<Lane> lanes_;
  std::vector<RoundWork> work_;
};

}  // namespace fastcomm
