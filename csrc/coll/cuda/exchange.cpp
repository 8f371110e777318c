#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "coll/cuda/exchange.h"

#include <algorithm>

#include "coll/plan.h"
#include "core/error.h"
#include "transport/peer_view.h"

namespace fastcomm {
namespace {

constexpr uint64_t kPack = 16;  // kernels move data fastest where ends share a pack
constexpr uint64_t kSlack = kLineBytes + kPack;  // what aligning a slot may cost
constexpr uint64_t kPieceElements = 64;          // pieces end at lines, whatever the element
// Room for the smallest piece of the widest reduction: all sources and the result staged.
constexpr uint64_t kLeastRoom = (kMaxLocalRanks + 1) * (kPieceElements * 8 + kSlack);
static_assert(kLeastRoom <= DeviceGroup::kLeastStagingBytes / 2, "a round makes progress");

uint32_t bit(int rank) { return uint32_t{1} << rank; }

/// A slot for `bytes` that come from or go to `like`: aligned as that is. There must be room.
char* take(char*& at, uint64_t bytes, const char* like) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  char* slot =
      at + (round_up(address, kLineBytes) - address) + reinterpret_cast<uintptr_t>(like) % kPack;
  at = slot + bytes;
  return slot;
}

CopySegment segment(int device, char* dst, const char* src, uint64_t bytes) {
  return CopySegment{device_view(device, dst, Touch::kWrite),
                     device_view(device, src, Touch::kRead), bytes};
}

}  // namespace

void Exchange::Work::clear() {
  stage.clear();
  pull.clear();
  fetch.clear();
  sources.clear();
  destinations.clear();
  counts.clear();
  staged_by = fetch_from = 0;
  stages_results = false;
}

Exchange::Exchange(DeviceGroup& group)
    : group_(group), size_(group.size()), lanes_(group.size()), work_(group.size()) {
  for (int rank = 0; rank < size_; ++rank) {
    for (int peer = 0; peer < size_; ++peer) {
      if (group.direct(rank, peer)) direct_[rank] |= bit(peer);
    }
  }
}

void Exchange::add(const CopyJob& job) {
  CopyJob kept = job;
  bool any = false;
  for (int rank = 0; rank < size_; ++rank) {
    if (kept.dst[rank] == kept.src) kept.dst[rank] = nullptr;
    any = any || kept.dst[rank] != nullptr;
  }
  if (any && job.bytes != 0) lanes_[job.from].copies.push_back(kept);
}

void Exchange::add(const ReduceJob& job) {
  if (job.count != 0) lanes_[job.owner].reductions.push_back(job);
}

void Exchange::clear() {
  for (Lane& lane : lanes_) {
    lane.copies.clear();
    lane.reductions.clear();
    lane.job = 0;
    lane.done = lane.staged_bytes = 0;
  }
  for (Work& work : work_) work.clear();
}

/// Who touches whose memory, and how much is to be staged.
void Exchange::look_at_jobs(const ReduceSpec& spec) {
  std::fill_n(touches_, size_, 0);
  std::fill_n(waited_, size_, 0);
  staged_bytes_ = 0;
  staging_lanes_ = 0;
  for (int lane = 0; lane < size_; ++lane) {
    uint64_t& staged = lanes_[lane].staged_bytes;
    for (const CopyJob& job : lanes_[lane].copies) {
      bool stages = false;
      for (int rank = 0; rank < size_; ++rank) {
        if (job.dst[rank] == nullptr || rank == job.from) continue;
        if (direct(rank, job.from)) {
          touches_[rank] |= bit(job.from);
        } else {
          stages = true;
        }
      }
      if (stages) staged += job.bytes + kSlack;
    }
    for (const ReduceJob& job : lanes_[lane].reductions) {
      bool stages_result = false;
      for (int rank = 0; rank < size_; ++rank) {
        if (rank != job.owner && direct(job.owner, rank)) touches_[job.owner] |= bit(rank);
        if (direct(job.owner, rank)) continue;
        staged += job.count * dtype_size(spec.in) + kSlack;
        stages_result = stages_result || job.dst[rank] != nullptr;
      }
      if (stages_result) staged += job.count * dtype_size(spec.out) + kSlack;
    }
    staged_bytes_ = std::max(staged_bytes_, staged);
    staging_lanes_ += staged != 0;
  }
  int pairs = 0;
  for (int rank = 0; rank < size_; ++rank) pairs += __builtin_popcount(touches_[rank]);
  all_meet_ = pairs > 2 * (size_ - 1);
}

void Exchange::run(const Streams& streams, const ReduceSpec& spec) {
  struct Forget {
    Exchange& exchange;
    ~Forget() { exchange.clear(); }
  } forget{*this};
  group_.check(streams);
  look_at_jobs(spec);
  DeviceGuard guard;
  begin(streams, guard);
  Staging none;
  Staging& staging = staging_lanes_ == 0
                         ? none
                         : group_.staging(std::max(staged_bytes_, kLeastRoom) * staging_lanes_);
  const auto unfinished = [](const Lane& lane) { return !lane.finished(); };
  while (std::any_of(lanes_.begin(), lanes_.end(), unfinished)) {
    fill_round(spec, staging);
    run_round(streams, spec, guard);
  }
  end(streams, guard);
}

void Exchange::fill_round(const ReduceSpec& spec, const Staging& staging) {
  for (Work& work : work_) work.clear();
  int lanes = 0;
  for (const Lane& lane : lanes_) lanes += lane.staged_bytes != 0 && !lane.finished();
  const uint64_t share = lanes == 0 ? 0 : std::max(staging.half_bytes / lanes, kLeastRoom);
  char* at = staging.memory + (staging.rounds & 1) * staging.half_bytes;
  char* const end = at + staging.half_bytes;
  for (Lane& lane : lanes_) {
    if (lane.finished()) continue;
    if (lane.staged_bytes == 0) {
      fill_lane(lane, Room{nullptr, nullptr}, spec);
    } else if (static_cast<uint64_t>(end - at) >= share) {
      fill_lane(lane, Room{at, at + share}, spec);
      at += share;
    }
  }
}

void Exchange::fill_lane(Lane& lane, Room room, const ReduceSpec& spec) {
  while (!lane.finished()) {
    const bool copying = lane.job < lane.copies.size();
    const size_t reduction = lane.job - lane.copies.size();
    const uint64_t total = copying ? lane.copies[lane.job].bytes : lane.reductions[reduction].count;
    const uint64_t piece = copying ? place(lane.copies[lane.job], lane.done, room)
                                   : place(lane.reductions[reduction], lane.done, room, spec);
    if (piece == 0) return;  // no room in this round
    lane.done += piece;
    if (lane.done < total) continue;
    ++lane.job;
    lane.done = 0;
  }
}

/// Puts the next piece of a job into the round; returns how much, 0 if there is no room.
uint64_t Exchange::place(const CopyJob& job, uint64_t done, Room& room) {
  bool stages = false;
  for (int rank = 0; rank < size_; ++rank) {
    stages = stages || (job.dst[rank] != nullptr && !direct(rank, job.from));
  }
  const char* src = job.src + done;
  uint64_t piece = job.bytes - done;
  const char* staged = nullptr;
  if (stages) {
    const uint64_t left = room.end - room.at;
    const uint64_t most = left <= kSlack ? 0 : left - kSlack;
    if (piece > most) piece = most / kLineBytes * kLineBytes;
    if (piece == 0) return 0;
    char* slot = take(room.at, piece, src);
    work_[job.from].stage.push_back(segment(group_.device(job.from), slot, src, piece));
    staged = slot;
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (job.dst[rank] == nullptr) continue;
    const bool reaches = direct(rank, job.from);
    Work& work = work_[rank];
    work.pull.push_back(
        segment(group_.device(rank), job.dst[rank] + done, reaches ? src : staged, piece));
    if (!reaches) work.staged_by |= bit(job.from);
  }
  return piece;
}

uint64_t Exchange::place(const ReduceJob& job, uint64_t done, Room& room, const ReduceSpec& spec) {
  const uint64_t in = dtype_size(spec.in);
  const uint64_t out = dtype_size(spec.out);
  const int owner = job.owner;
  uint64_t slots = 0;
  uint64_t bytes = 0;  // of staging memory that an element takes
  bool stages_result = false;
  for (int rank = 0; rank < size_; ++rank) {
    if (direct(owner, rank)) continue;
    ++slots;
    bytes += in;
    stages_result = stages_result || job.dst[rank] != nullptr;
  }
  if (stages_result) {
    ++slots;
    bytes += out;
  }
  uint64_t piece = job.count - done;
  if (slots != 0) {
    const uint64_t left = room.end - room.at;
    const uint64_t most = left <= slots * kSlack ? 0 : (left - slots * kSlack) / bytes;
    if (piece > most) piece = most / kPieceElements * kPieceElements;
    if (piece == 0) return 0;
  }

  const int device = group_.device(owner);
  Work& work = work_[owner];
  for (int rank = 0; rank < size_; ++rank) {
    const char* source = job.sources[rank] + done * in;
    if (!direct(owner, rank)) {
      char* slot = take(room.at, piece * in, source);
      work_[rank].stage.push_back(segment(group_.device(rank), slot, source, piece * in));
      work.staged_by |= bit(rank);
      source = slot;
    }
    work.sources.push_back(device_view(device, source, Touch::kRead));
  }
  int destinations = 0;
  char* result = nullptr;
  for (int rank = 0; rank < size_; ++rank) {
    if (job.dst[rank] == nullptr) continue;
    char* dst = job.dst[rank] + done * out;
    if (!direct(owner, rank)) {
      if (result == nullptr) result = take(room.at, piece * out, dst);
      work_[rank].fetch.push_back(segment(group_.device(rank), dst, result, piece * out));
      work_[rank].fetch_from |= bit(owner);
      continue;
    }
    work.destinations.push_back(device_view(device, dst, Touch::kWrite));
    ++destinations;
  }
  if (result != nullptr) {
    work.destinations.push_back(device_view(device, result, Touch::kWrite));
    work.stages_results = true;
    ++destinations;
  }
  FC_CHECK(work.counts.empty() || destinations == work.num_destinations,
           "exchange: reductions of rank ", owner, " have different numbers of destinations");
  work.num_destinations = destinations;
  work.counts.push_back(piece);
  return piece;
}

void Exchange::begin(const Streams& streams, DeviceGuard& guard) {
  if (all_meet_) return group_.meet(Mark::kReady, streams, guard);
  uint32_t touched = 0;
  for (int rank = 0; rank < size_; ++rank) touched |= touches_[rank];
  for (int rank = 0; rank < size_; ++rank) {
    if (touched & bit(rank)) group_.mark(Mark::kReady, rank, streams, guard);
  }
}

/// Waits until nobody reads this round's half of staging any more.
void Exchange::claim_half(int rank, const Streams& streams, DeviceGuard& guard) {
  Staging& staging = group_.staging(0);
  const int half = staging.rounds & 1;
  for (int reader = 0; reader < size_; ++reader) {
    if (!(staging.readers[half] & bit(reader))) continue;
    group_.await_earlier(half == 0 ? Mark::kDrained : Mark::kDrainedOdd, rank, reader, streams,
                         guard);
  }
}

void Exchange::run_round(const Streams& streams, const ReduceSpec& spec, DeviceGuard& guard) {
  const auto copy = [&](int rank, const std::vector<CopySegment>& segments) {
    guard.set(group_.device(rank));
    launch_multi_copy(segments.data(), static_cast<int>(segments.size()), streams[rank]);
  };
  const auto await_all = [&](Mark mark, int rank, uint32_t peers) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peers & bit(peer)) group_.await(mark, rank, peer, streams, guard);
    }
  };
  uint32_t readers = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const Work& work = work_[rank];
    if (work.staged_by != 0 || work.fetch_from != 0) readers |= bit(rank);
    if (work.stage.empty()) continue;
    claim_half(rank, streams, guard);
    copy(rank, work.stage);
    group_.mark(Mark::kStaged, rank, streams, guard);
  }
  for (int rank = 0; rank < size_; ++rank) {
    const Work& work = work_[rank];
    if (work.empty()) continue;
    if (!all_meet_) await_all(Mark::kReady, rank, touches_[rank] & ~waited_[rank]);
    waited_[rank] = touches_[rank];
    await_all(Mark::kStaged, rank, work.staged_by);
    if (work.stages_results && work.stage.empty()) claim_half(rank, streams, guard);
    guard.set(group_.device(rank));
    launch_work(rank, spec, streams[rank]);
    if (work.stages_results) group_.mark(Mark::kWorked, rank, streams, guard);
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (work_[rank].fetch.empty()) continue;
    await_all(Mark::kWorked, rank, work_[rank].fetch_from);
    copy(rank, work_[rank].fetch);
  }
  if (readers == 0) return;
  Staging& staging = group_.staging(0);
  const int half = staging.rounds & 1;
  for (int rank = 0; rank < size_; ++rank) {
    if (readers & bit(rank)) {
      group_.mark(half == 0 ? Mark::kDrained : Mark::kDrainedOdd, rank, streams, guard);
    }
  }
  staging.readers[half] = readers;
  ++staging.rounds;
}

void Exchange::launch_work(int rank, const ReduceSpec& spec, cudaStream_t stream) {
  const Work& work = work_[rank];
  launch_multi_copy(work.pull.data(), static_cast<int>(work.pull.size()), stream);
  if (work.counts.empty()) return;
  ReduceSpec own = spec;
  own.num_sources = size_;
  own.num_destinations = work.num_destinations;
  segments_.clear();
  for (size_t i = 0; i < work.counts.size(); ++i) {
    segments_.push_back(ReduceSegment{
        &work.sources[i * size_], &work.destinations[i * work.num_destinations], work.counts[i]});
  }
  launch_multi_reduce(segments_.data(), static_cast<int>(segments_.size()), own, stream);
}

void Exchange::end(const Streams& streams, DeviceGuard& guard) {
  if (all_meet_) return group_.meet(Mark::kFinished, streams, guard);
  for (int rank = 0; rank < size_; ++rank) {
    if (touches_[rank] == 0) continue;
    group_.mark(Mark::kFinished, rank, streams, guard);
    for (int peer = 0; peer < size_; ++peer) {
      if (touches_[rank] & bit(peer)) {
        group_.await(Mark::kFinished, peer, rank, streams, guard);
      }
    }
  }
}

}  // namespace fastcomm
#endif
