// The jobs of one exchange as work of its ranks, round by round: each rank's copies and reductions,
// and the places of data that goes through pinned memory. Arithmetic alone: devices/exchange.h
// defines a round, and enqueues it.
//
// A rank's jobs are those whose data it stages, or that it reduces. Every rank that stages any gets
// an equal share of a round's staging memory, with room for at least the smallest piece, and puts
// as much of its jobs there as fits; a rank that gets no share waits for a later round. Ranks that
// stage nothing are done in the first round.
#pragma once

#include <cstdint>
#include <vector>

#include "devices/device_set.h"
#include "kernels/cuda/multi_copy.h"
#include "kernels/cuda/multi_reduce.h"

namespace fastcomm {

static_assert(kMaxLocalRanks <= kMaxReduceSources, "a reduction takes a source of every rank");

/// A copy of `bytes` at `src`, in memory of rank `from`, to each dst[r] that is not null, in memory
/// of rank r.
struct CopyJob {
  int from;
  const char* src;
  uint64_t bytes;
  char* dst[kMaxLocalRanks];
};

/// A reduction, by rank `owner`, of `count` elements of all sources[r], in memory of rank r, to
/// `dst`, in memory of rank `to`. `dst` may be sources[to].
struct ReduceJob {
  int owner;
  uint64_t count;
  const char* sources[kMaxLocalRanks];
  int to;
  char* dst;
};

/// The set of this rank alone.
inline uint32_t rank_bit(int rank) { return uint32_t{1} << rank; }

/// Calls `use(rank)` for each rank of a set.
template <class Use>
void for_each_rank(uint32_t ranks, const Use& use) {
  for (; ranks != 0; ranks &= ranks - 1) use(__builtin_ctz(ranks));
}

/// One rank's work in a round.
struct RoundWork {
  std::vector<CopySegment> stage, pull, fetch;
  std::vector<const void*> sources;  // of each reduction, one per rank
  std::vector<void*> destinations;   // one per reduction
  std::vector<uint64_t> counts;
  uint32_t staged_by = 0;       // bit s: reads data that rank s has staged
  uint32_t fetch_from = 0;      // bit s: fetches results of rank s
  bool stages_results = false;  // some destinations are staging memory
  /// True if nothing is pulled or reduced.
  bool empty() const { return pull.empty() && counts.empty(); }
  void clear();
};

/// Staging memory that is not taken yet.
struct Room {
  char* at = nullptr;
  char* end = nullptr;
  uint64_t left() const { return end - at; }
};

/// Keeps the memory of its lists from one operation to the next, so that repeated operations
/// allocate nothing.
class ExchangePlan {
 public:
  explicit ExchangePlan(const DeviceSet& group);

  /// Empty jobs, and copies onto themselves, are left out.
  void add(const CopyJob& job);
  void add(const ReduceJob& job);

  /// Called when all jobs have been added; `spec` describes the reductions. The ranks' access to
  /// each other is read here, once for the whole operation.
  void begin(const ReduceSpec& spec);

  /// After begin(). Bit p: kernels of `rank` touch memory of rank p in place.
  uint32_t touches(int rank) const { return touches_[rank]; }
  /// After begin(). Bytes of staging memory that hold everything in one round; 0 if nothing is
  /// staged.
  uint64_t staging_bytes() const;

  /// True if a job, or a part of one, is in no round yet.
  bool unfinished() const;
  /// Makes the next round, which may stage in `half`.
  void next_round(Room half);
  /// The work of `rank` in this round.
  const RoundWork& work(int rank) const { return work_[rank]; }

  /// Forgets all jobs.
  void clear();

 private:
  struct RankJobs {
    std::vector<CopyJob> copies;
    std::vector<ReduceJob> reductions;
    size_t job = 0;     // the next one; copies come first
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
  void fill(RankJobs& jobs, Room room);
  uint64_t place(const CopyJob& job, uint64_t done, Room& room);
  uint64_t place(const ReduceJob& job, uint64_t done, Room& room);

  const DeviceSet& group_;
  const int size_;
  ReduceSpec spec_{};
  uint32_t direct_[kMaxLocalRanks] = {};  // bit p of r: rank r reaches the memory of rank p
  uint32_t touches_[kMaxLocalRanks] = {};
  uint64_t staged_bytes_ = 0;  // of the rank with most
  int stagers_ = 0;
  std::vector<RankJobs> jobs_;
  std::vector<RoundWork> work_;
};

}  // namespace fastcomm
