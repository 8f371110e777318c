// Plans of operations between devices (engines/cuda/peer_plan.h, engines/cuda/pair_plan.h) against
// a model of the links: each device has one link out and one in, full duplex, and those who read a
// device at the same time share its link out evenly. Time is counted, in bytes of a free link.
//
//   peer_plan_test [CASE]
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "coll/messages.h"
#include "engines/cuda/pair_plan.h"
#include "engines/cuda/peer_plan.h"

namespace fastcomm::testing {
namespace {

constexpr uint64_t kArea = 64 << 20;
constexpr uint64_t kCount = 3 << 20;  // elements of a message: one round
constexpr int kSizes[] = {2, 3, 4, 8, 16};

/// Addresses that nobody uses, from which the owner is known: -1 is for tensors.
char* memory_of(int owner, uint64_t offset = 0) {
  return reinterpret_cast<char*>((uint64_t(owner) + 2) << 40 | offset);
}
int owner_of(const void* address) {
  return static_cast<int>(reinterpret_cast<uint64_t>(address) >> 40) - 2;
}

PeerAreas areas_of(int rank, int size) {
  PeerAreas areas{rank, size, kArea, {}, {}};
  for (int peer = 0; peer < size; ++peer) {
    areas.in.push_back(memory_of(peer));
    areas.out.push_back(memory_of(peer, kArea));
  }
  return areas;
}

/// Bytes that a rank reads from `owner`.
struct Read {
  int owner;
  uint64_t bytes;
};
/// Those of a rank, one after the other.
using Reads = std::vector<Read>;

/// Reads out of the windows of other ranks.
template <class Segments>
Reads reads_of(int rank, const Segments& segments) {
  Reads reads;
  for (const CopySegment& segment : segments) {
    const int owner = owner_of(segment.src);
    if (owner >= 0 && owner != rank) reads.push_back({owner, segment.bytes});
  }
  return reads;
}

/// The time until all ranks have read all.
double link_time(std::vector<Reads> ranks) {
  const size_t size = ranks.size();
  std::vector<size_t> next(size, 0);
  std::vector<double> left(size);
  for (size_t rank = 0; rank < size; ++rank) {
    left[rank] = ranks[rank].empty() ? 0 : double(ranks[rank][0].bytes);
  }
  double time = 0;
  for (;;) {
    std::vector<int> readers(size, 0);
    const auto is_done = [&](size_t rank) { return next[rank] == ranks[rank].size(); };
    for (size_t rank = 0; rank < size; ++rank) {
      if (!is_done(rank)) ++readers[ranks[rank][next[rank]].owner];
    }
    const auto share = [&](size_t rank) { return 1.0 / readers[ranks[rank][next[rank]].owner]; };
    double step = -1;  // until a rank has read one of its segments
    for (size_t rank = 0; rank < size; ++rank) {
      if (is_done(rank)) continue;
      const double its = left[rank] / share(rank);
      if (step < 0 || its < step) step = its;
    }
    if (step < 0) return time;
    time += step;
    std::vector<size_t> finished;
    for (size_t rank = 0; rank < size; ++rank) {
      if (is_done(rank)) continue;
      left[rank] -= step * share(rank);
      if (left[rank] < 0.5) finished.push_back(rank);
    }
    for (const size_t rank : finished) {
      if (++next[rank] < ranks[rank].size()) left[rank] = double(ranks[rank][next[rank]].bytes);
    }
  }
}

Call call_of(OpKind kind, int size) {
  Call call;
  call.kind = kind;
  call.dtype = DType::kFloat32;
  call.count = kCount;
  call.input = call.output = memory_of(-1);
  call.outputs.assign(size, memory_of(-1));
  return call;
}

/// Compares the time of all ranks' reads with that of links which are never idle.
template <class ReadsOf>
void expect_full_links(const char* name, const ReadsOf& reads_of_rank) {
  for (const int size : kSizes) {
    std::vector<Reads> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(reads_of_rank(rank, size));
    const double ideal = double(size - 1) * kCount * sizeof(float);
    const double time = link_time(ranks);
    EXPECT(time >= 0.999 * ideal && time <= 1.1 * ideal, name, " of ", size, " ranks takes ",
           time / ideal, " times as long as its links need");
  }
}

CASE(all_gather) {
  for (const bool finds : {false, true}) {
    expect_full_links("all_gather", [&](int rank, int size) {
      const Call call = call_of(OpKind::kAllGather, size);
      const PeerRound round = round_of(call, areas_of(rank, size), 0, {finds, 0, 0});
      EXPECT(round.ends.size() == (finds ? round.pull.size() : 0), round.ends.size(), " ends");
      for (size_t i = 0; i < round.ends.size(); ++i) {
        EXPECT(round.ends[i].staged == round.pull[i].src, "another end than that of its pull");
      }
      return reads_of(rank, round.pull);
    });
  }
}

CASE(all_to_all) {
  for (const bool same : {false, true}) {
    expect_full_links("all_to_all", [&](int rank, int size) {
      Call call = call_of(same ? OpKind::kAllGatherUneven : OpKind::kAllToAll, size);
      Messages messages(size);
      messages.same_for_all = same;
      for (auto& sent : messages.sends) sent = {memory_of(-1), kCount * sizeof(float)};
      for (auto& each : messages.receives) each = {memory_of(-1, kArea), kCount * sizeof(float)};
      call.messages = std::make_shared<Messages>(std::move(messages));
      const PeerAreas areas = areas_of(rank, size);
      Reads reads;
      for (uint64_t round = 0; round < pair_sizes(call, areas).rounds; ++round) {
        const Reads more = reads_of(rank, round_of_pairs(call, areas, round).pull);
        reads.insert(reads.end(), more.begin(), more.end());
      }
      return reads;
    });
  }
}

CASE(gather_shards) {
  expect_full_links("gather_shards", [&](int rank, int size) {
    Call call = call_of(OpKind::kGatherShards, size);
    call.shards = std::make_shared<ShardPieces>(size);
    Reads reads;
    for (const PiecesSpan& span : round_of(call, areas_of(rank, size), 0).pull_shards) {
      reads.push_back({owner_of(span.window), span.count * sizeof(float)});
    }
    return reads;
  });
}

/// Results of a reduction that are fetched, not pushed.
CASE(pulled_results) {
  for (const int size : kSizes) {
    std::vector<Reads> ranks;
    for (int rank = 0; rank < size; ++rank) {
      PeerAreas areas = areas_of(rank, size);
      areas.pushes = false;
      ranks.push_back(reads_of(rank, round_of(call_of(OpKind::kAllReduce, size), areas, 0).fetch));
    }
    const double ideal = double(size - 1) / size * kCount * sizeof(float);
    EXPECT(link_time(ranks) <= 1.1 * ideal, "all_reduce of ", size, " ranks takes ",
           link_time(ranks) / ideal, " times as long as its links need");
  }
}

/// A broadcast from `root`: the time of its pulls and of its fetches, in messages, and the messages
/// that leave the root.
struct Broadcast {
  double time = 0;
  double out_of_root = 0;
};
Broadcast broadcast_of(int size, int root, uint64_t slices_from) {
  Broadcast made;
  const double message = double(kCount * sizeof(float));
  std::vector<Reads> pulls, fetches;
  for (int rank = 0; rank < size; ++rank) {
    PeerAreas areas = areas_of(rank, size);
    areas.slices_from = slices_from;
    Call call = call_of(OpKind::kBroadcast, size);
    call.input = nullptr;
    call.root = root;
    const PeerRound round = round_of(call, areas, 0);
    pulls.push_back(reads_of(rank, round.pull));
    fetches.push_back(reads_of(rank, round.fetch));
    for (const Reads* const reads : {&pulls.back(), &fetches.back()}) {
      for (const Read& read : *reads) {
        if (read.owner == root) made.out_of_root += double(read.bytes) / message;
      }
    }
  }
  made.time = (link_time(pulls) + link_time(fetches)) / message;
  return made;
}

CASE(broadcast) {
  for (const int size : kSizes) {
    for (const int root : {0, size - 1}) {
      const Broadcast whole = broadcast_of(size, root, 0);
      EXPECT(std::abs(whole.out_of_root - (size - 1)) < 1e-3, whole.out_of_root, " messages");
      const Broadcast few = broadcast_of(size, root, kCount * sizeof(float) + 1);
      EXPECT(few.out_of_root == whole.out_of_root, "in slices, although it is too small");
      const Broadcast slices = broadcast_of(size, root, kCount * sizeof(float));
      // Once as slices, and once as the root's own slice for each other rank.
      const double least = size == 2 ? 1 : 2.0 * (size - 1) / size;
      EXPECT(std::abs(slices.out_of_root - least) < 1e-3, size, " ranks: ", slices.out_of_root,
             " messages leave the root, not ", least);
      EXPECT(slices.time < 1.1 * least, size, " ranks: the time of ", slices.time, " messages");
    }
  }
}

CASE(pushes_begin_at_their_rank) {
  for (const int size : kSizes) {
    for (int rank = 0; rank < size; ++rank) {
      const Call call = call_of(OpKind::kAllReduce, size);
      const PeerRound round = round_of(call, areas_of(rank, size), 0);
      EXPECT(static_cast<int>(round.destinations.size()) == size, "destinations");
      for (int step = 0; step < size; ++step) {
        const int owner = owner_of(round.destinations[step]);
        EXPECT(owner == (rank + step) % size, "push ", step, " of rank ", rank, " goes to ", owner);
        EXPECT(owner_of(round.sources[step]) == step, "sums have the order of the ranks");
      }
    }
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
