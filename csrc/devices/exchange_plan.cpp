#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "devices/exchange_plan.h"

#include <algorithm>

#include "coll/plan.h"
#include "core/error.h"
#include "transport/peer_view.h"

namespace fastcomm {
namespace {

constexpr uint64_t kPack = 16;  // kernels move data fastest if both ends share a pack
constexpr uint64_t kSlack = kLineBytes + kPack;  // the most that aligning a slot costs
constexpr uint64_t kPieceElements = 64;          // pieces end at lines, for any element
// Room for the smallest piece of the widest reduction: all sources and the result staged.
constexpr uint64_t kLeastRoom = (kMaxLocalRanks + 1) * (kPieceElements * 8 + kSlack);
static_assert(kLeastRoom <= DeviceSet::kLeastStagingBytes / 2, "a round makes progress");

/// A slot for `bytes` that are copied from or to `like`, with the same alignment. There must be
/// room.
char* take(char*& at, uint64_t bytes, const char* like) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  char* slot =
      at + (round_up(address, kLineBytes) - address) + reinterpret_cast<uintptr_t>(like) % kPack;
  at = slot + bytes;
  return slot;
}

}  // namespace

void RoundWork::clear() {
  stage.clear();
  pull.clear();
  fetch.clear();
  sources.clear();
  destinations.clear();
  counts.clear();
  staged_by = fetch_from = 0;
  stages_results = false;
}

ExchangePlan::ExchangePlan(const DeviceSet& group)
    : group_(group), size_(group.size()), jobs_(group.size()), work_(group.size()) {}

void ExchangePlan::add(const CopyJob& job) {
  CopyJob kept = job;
  bool any = false;
  for (int rank = 0; rank < size_; ++rank) {
    if (kept.dst[rank] == kept.src) kept.dst[rank] = nullptr;
    any = any || kept.dst[rank] != nullptr;
  }
  if (any && job.bytes != 0) jobs_[job.from].copies.push_back(kept);
}

void ExchangePlan::add(const ReduceJob& job) {
  if (job.count != 0) jobs_[job.owner].reductions.push_back(job);
}

void ExchangePlan::clear() {
  for (RankJobs& jobs : jobs_) {
    jobs.copies.clear();
    jobs.reductions.clear();
    jobs.job = 0;
    jobs.done = jobs.staged_bytes = 0;
  }
  for (RoundWork& work : work_) work.clear();
}

void ExchangePlan::begin(const ReduceSpec& spec) {
  spec_ = spec;
  std::fill_n(touches_, size_, 0);
  for (int rank = 0; rank < size_; ++rank) {
    direct_[rank] = 0;
    for (int peer = 0; peer < size_; ++peer) {
      if (group_.direct(rank, peer)) direct_[rank] |= rank_bit(peer);
    }
  }
  staged_bytes_ = 0;
  stagers_ = 0;
  for (int owner = 0; owner < size_; ++owner) {
    uint64_t& bytes = jobs_[owner].staged_bytes;
    for (const CopyJob& job : jobs_[owner].copies) {
      for (int rank = 0; rank < size_; ++rank) {
        if (job.dst[rank] == nullptr || rank == job.from || !direct(rank, job.from)) continue;
        touches_[rank] |= rank_bit(job.from);
      }
      bytes += staged(job).total(job.bytes);
    }
    for (const ReduceJob& job : jobs_[owner].reductions) {
      touches_[job.owner] |= direct_[job.owner] & ~rank_bit(job.owner);
      bytes += staged(job).total(job.count);
    }
    staged_bytes_ = std::max(staged_bytes_, bytes);
    stagers_ += bytes != 0;
  }
}

ExchangePlan::Staged ExchangePlan::staged(const CopyJob& job) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (job.dst[rank] != nullptr && !direct(rank, job.from)) return {1, 1};
  }
  return {};
}

ExchangePlan::Staged ExchangePlan::staged(const ReduceJob& job) const {
  Staged found;
  const auto add = [&](int rank, DType dtype) {
    if (direct(job.owner, rank)) return;
    ++found.slots;
    found.bytes += dtype_size(dtype);
  };
  for (int rank = 0; rank < size_; ++rank) add(rank, spec_.in);
  add(job.to, spec_.out);
  return found;
}

/// Staging memory for all of a job in one piece.
uint64_t ExchangePlan::Staged::total(uint64_t count) const {
  return count * bytes + slots * kSlack;
}

/// Size of the next piece of a job of which `wanted` are left; 0 if there is no room.
uint64_t ExchangePlan::Staged::most(uint64_t wanted, const Room& room) const {
  if (slots == 0) return wanted;
  const uint64_t left = room.left();
  const uint64_t fits = left <= slots * kSlack ? 0 : (left - slots * kSlack) / bytes;
  return wanted <= fits ? wanted : fits / kPieceElements * kPieceElements;
}

uint64_t ExchangePlan::staging_bytes() const {
  return std::max(staged_bytes_, kLeastRoom) * stagers_;
}

bool ExchangePlan::unfinished() const {
  const auto has_jobs = [](const RankJobs& jobs) { return !jobs.finished(); };
  return std::any_of(jobs_.begin(), jobs_.end(), has_jobs);
}

void ExchangePlan::next_round(Room half) {
  for (RoundWork& work : work_) work.clear();
  int sharers = 0;
  for (const RankJobs& jobs : jobs_) sharers += jobs.staged_bytes != 0 && !jobs.finished();
  const uint64_t share = sharers == 0 ? 0 : std::max(half.left() / sharers, kLeastRoom);
  for (RankJobs& jobs : jobs_) {
    if (jobs.finished()) continue;
    if (jobs.staged_bytes == 0) {
      fill(jobs, Room{});
    } else if (half.left() >= share) {
      fill(jobs, Room{half.at, half.at + share});
      half.at += share;
    }
  }
}

void ExchangePlan::fill(RankJobs& jobs, Room room) {
  while (!jobs.finished()) {
    const bool copying = jobs.job < jobs.copies.size();
    const size_t reduction = jobs.job - jobs.copies.size();
    const uint64_t total = copying ? jobs.copies[jobs.job].bytes : jobs.reductions[reduction].count;
    const uint64_t piece = copying ? place(jobs.copies[jobs.job], jobs.done, room)
                                   : place(jobs.reductions[reduction], jobs.done, room);
    if (piece == 0) return;  // no room in this round
    jobs.done += piece;
    if (jobs.done < total) continue;
    ++jobs.job;
    jobs.done = 0;
  }
}

/// Puts the next piece of a job into the round; returns its size, 0 if there is no room.
uint64_t ExchangePlan::place(const CopyJob& job, uint64_t done, Room& room) {
  const Staged needs = staged(job);
  const uint64_t piece = needs.most(job.bytes - done, room);
  if (piece == 0) return 0;
  const char* src = job.src + done;
  char* slot = nullptr;
  if (needs.slots != 0) {
    slot = take(room.at, piece, src);
    work_[job.from].stage.push_back(CopySegment{slot, src, piece});
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (job.dst[rank] == nullptr) continue;
    const bool reaches = direct(rank, job.from);
    RoundWork& work = work_[rank];
    work.pull.push_back(CopySegment{job.dst[rank] + done, reaches ? src : slot, piece});
    if (!reaches) work.staged_by |= rank_bit(job.from);
  }
  return piece;
}

uint64_t ExchangePlan::place(const ReduceJob& job, uint64_t done, Room& room) {
  const uint64_t in = dtype_size(spec_.in);
  const uint64_t out = dtype_size(spec_.out);
  const int owner = job.owner;
  const uint64_t piece = staged(job).most(job.count - done, room);
  if (piece == 0) return 0;

  RoundWork& work = work_[owner];
  for (int rank = 0; rank < size_; ++rank) {
    const char* source = job.sources[rank] + done * in;
    if (!direct(owner, rank)) {
      char* slot = take(room.at, piece * in, source);
      work_[rank].stage.push_back(CopySegment{slot, source, piece * in});
      work.staged_by |= rank_bit(rank);
      source = slot;
    }
    work.sources.push_back(source);
  }
  char* dst = job.dst + done * out;
  if (!direct(owner, job.to)) {
    char* const result = take(room.at, piece * out, dst);
    work_[job.to].fetch.push_back(CopySegment{dst, result, piece * out});
    work_[job.to].fetch_from |= rank_bit(owner);
    work.stages_results = true;
    dst = result;
  }
  work.destinations.push_back(dst);
  work.counts.push_back(piece);
  return piece;
}

}  // namespace fastcomm
#endif
