// A broadcast of many blocks in which one rank is behind, driven by hand.
#pragma once

#include <algorithm>
#include <vector>

#include "failure.h"
#include "rank_world.h"

namespace fastcomm::testing {

struct LaggingBroadcast {
  static constexpr uint64_t kCount =
      2900;  // an odd number of blocks: a rank moves two steps per round
  /// As far behind as the schedule allows: only the root waits for the slow rank once more.
  static constexpr auto kLastStep = uint32_t{(kCount * sizeof(float) + 511) / 512};

  /// Everybody goes as far as possible, and the slow rank to a step.
  LaggingBroadcast(RankWorld& world, int root, int slow, uint32_t step = kLastStep,
                   Milliseconds timeout = kTimeout)
      : data(world.size(), std::vector<float>(kCount)), root(root) {
    world.stop_progress();
    std::fill(data[root].begin(), data[root].end(), 7.f);
    for (int rank = 0; rank < world.size(); ++rank) {
      const Call call = broadcast_call(data[rank].data(), kCount, root);
      operations.push_back(world.at(rank).start(call, timeout, nullptr));
    }
    const auto rest_is_done = [&] {
      for (int rank = 0; rank < world.size(); ++rank) {
        if (rank != slow && rank != root && !done(rank)) return false;
      }
      return true;
    };
    for (int round = 0; round < 1000 && !rest_is_done(); ++round) {
      for (int rank = 0; rank < world.size(); ++rank) {
        if (rank != slow) world.at(rank).poll();
      }
      if (operations[slow]->step() < step) world.at(slow).poll();
    }
  }

  bool done(int rank) const { return operations[rank]->done(); }
  /// Lets the ranks that are behind go on, and expects that all end well.
  void expect_good_end(RankWorld& world) const {
    for (int round = 0; round < 1000; ++round) {
      for (int rank = 0; rank < world.size(); ++rank) {
        if (done(rank)) continue;
        world.at(rank).examine();
        world.at(rank).poll();
      }
    }
    for (int rank = 0; rank < world.size(); ++rank) {
      EXPECT(done(rank), rank);
      if (!done(rank)) continue;
      EXPECT(!failure_of(*operations[rank]).failed, failure_of(*operations[rank]).text);
      EXPECT(data[rank] == data[root], "rank ", rank);
    }
  }

  std::vector<std::vector<float>> data;
  std::vector<std::shared_ptr<Operation>> operations;
  const int root;
};

}  // namespace fastcomm::testing
