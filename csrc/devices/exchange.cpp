#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "devices/exchange.h"

#include <algorithm>
#include <mutex>

#include "coll/list_plan.h"
#include "core/device_guard.h"
#include "core/error.h"
#include "kernels/cuda/multi_copy.h"
#include "transport/peer_view.h"

namespace fastcomm {
namespace {

/// The half of this round.
Room half_of(const Staging& staging) {
  char* at = staging.memory + (staging.rounds & 1) * staging.half_bytes;
  return Room{at, at + staging.half_bytes};
}

/// The mark of that half's readers.
Mark drained(const Staging& staging) {
  return (staging.rounds & 1) == 0 ? Mark::kDrained : Mark::kDrainedOdd;
}

}  // namespace

void Exchange::copy(const std::vector<CopyJob>& jobs, const Streams& streams) {
  const std::lock_guard<std::mutex> lock(group_.mutex());
  for (const CopyJob& job : jobs) plan_.add(job);
  run(streams, ReduceSpec{});
}

void Exchange::reduce(const RankSources& inputs, const std::vector<char*>& outputs,
                      const Sizes& counts, const ReduceSpec& spec, int root,
                      const Streams& streams) {
  if (!has_cuda_kernel(spec.in) || !has_cuda_kernel(spec.out)) {
    throw Error(ErrorCode::kUnsupported, concat("reduce: no CUDA kernel reduces ",
                                                dtype_name(spec.in), " to ", dtype_name(spec.out)));
  }
  const uint64_t in = dtype_size(spec.in);
  const uint64_t out = dtype_size(spec.out);
  const std::lock_guard<std::mutex> lock(group_.mutex());
  // A line of the narrower type, so that neither side is cut within a line.
  divide_list(counts, size_, kLineBytes / smaller(in, out), [&](int owner, size_t t, Span span) {
    ReduceJob job{owner, span.count, {}, root, outputs[t] + span.first * out};
    for (int rank = 0; rank < size_; ++rank) job.sources[rank] = inputs[rank][t] + span.first * in;
    plan_.add(job);
  });
  run(streams, spec);
}

void Exchange::run(const Streams& streams, const ReduceSpec& spec) {
  struct Forget {
    ExchangePlan& plan;
    ~Forget() { plan.clear(); }
  } forget{plan_};
  group_.check(streams);
  group_.look_again(streams);
  plan_.begin(spec);
  std::fill_n(waited_, size_, 0);
  int pairs = 0;
  for (int rank = 0; rank < size_; ++rank) pairs += __builtin_popcount(plan_.touches(rank));
  all_meet_ = pairs > 2 * (size_ - 1);
  DeviceGuard guard;
  begin(streams, guard);
  const uint64_t wanted = plan_.staging_bytes();
  const Staging* staging = wanted == 0 ? nullptr : &group_.staging(wanted);
  while (plan_.unfinished()) {
    plan_.next_round(staging == nullptr ? Room{} : half_of(*staging));
    run_round(streams, spec, guard);
  }
  end(streams, guard);
}

void Exchange::begin(const Streams& streams, DeviceGuard& guard) {
  if (all_meet_) return group_.meet(Mark::kReady, streams, guard);
  uint32_t touched = 0;
  for (int rank = 0; rank < size_; ++rank) touched |= plan_.touches(rank);
  for_each_rank(touched, [&](int rank) { group_.mark(Mark::kReady, rank, streams, guard); });
}

/// Waits until nobody reads this round's half of staging any more.
void Exchange::claim_half(int rank, const Streams& streams, DeviceGuard& guard) {
  Staging& staging = group_.staging(0);
  for_each_rank(staging.readers[staging.rounds & 1], [&](int reader) {
    group_.await_earlier(drained(staging), rank, reader, streams, guard);
  });
}

void Exchange::run_round(const Streams& streams, const ReduceSpec& spec, DeviceGuard& guard) {
  const auto copy = [&](int rank, const std::vector<CopySegment>& segments) {
    guard.set(group_.device(rank));
    launch_multi_copy(segments.data(), static_cast<int>(segments.size()), streams[rank]);
  };
  const auto await_all = [&](Mark mark, int rank, uint32_t peers) {
    for_each_rank(peers, [&](int peer) { group_.await(mark, rank, peer, streams, guard); });
  };
  uint32_t readers = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const RoundWork& work = plan_.work(rank);
    if (work.staged_by != 0 || work.fetch_from != 0) readers |= rank_bit(rank);
    if (work.stage.empty()) continue;
    claim_half(rank, streams, guard);
    copy(rank, work.stage);
    group_.mark(Mark::kStaged, rank, streams, guard);
  }
  for (int rank = 0; rank < size_; ++rank) {
    const RoundWork& work = plan_.work(rank);
    if (work.empty()) continue;
    if (!all_meet_) await_all(Mark::kReady, rank, plan_.touches(rank) & ~waited_[rank]);
    waited_[rank] = plan_.touches(rank);
    await_all(Mark::kStaged, rank, work.staged_by);
    if (work.stages_results && work.stage.empty()) claim_half(rank, streams, guard);
    guard.set(group_.device(rank));
    launch_work(rank, spec, streams[rank]);
    if (work.stages_results) group_.mark(Mark::kWorked, rank, streams, guard);
  }
  for (int rank = 0; rank < size_; ++rank) {
    const RoundWork& work = plan_.work(rank);
    if (work.fetch.empty()) continue;
    await_all(Mark::kWorked, rank, work.fetch_from);
    copy(rank, work.fetch);
  }
  if (readers == 0) return;
  Staging& staging = group_.staging(0);
  for_each_rank(readers, [&](int rank) { group_.mark(drained(staging), rank, streams, guard); });
  staging.readers[staging.rounds & 1] = readers;
  ++staging.rounds;
}

void Exchange::launch_work(int rank, const ReduceSpec& spec, cudaStream_t stream) {
  const RoundWork& work = plan_.work(rank);
  launch_multi_copy(work.pull.data(), static_cast<int>(work.pull.size()), stream);
  if (work.counts.empty()) return;
  ReduceSpec own = spec;
  own.num_sources = size_;
  own.num_destinations = 1;
  segments_.clear();
  for (size_t i = 0; i < work.counts.size(); ++i) {
    segments_.push_back(
        ReduceSegment{&work.sources[i * size_], &work.destinations[i], work.counts[i]});
  }
  launch_multi_reduce(segments_.data(), static_cast<int>(segments_.size()), own, stream);
}

void Exchange::end(const Streams& streams, DeviceGuard& guard) {
  if (all_meet_) return group_.meet(Mark::kFinished, streams, guard);
  for (int rank = 0; rank < size_; ++rank) {
    if (plan_.touches(rank) == 0) continue;
    group_.mark(Mark::kFinished, rank, streams, guard);
    for_each_rank(plan_.touches(rank),
                  [&](int peer) { group_.await(Mark::kFinished, peer, rank, streams, guard); });
  }
}

}  // namespace fastcomm
#endif
