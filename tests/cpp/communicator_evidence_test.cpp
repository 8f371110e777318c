// How a rank judges peers that change while it looks or works. Everything is driven by hand.
//
//   communicator_evidence_test CASE SEED
//
// tests/model/ checks the same rules over all orders of events; these are the orders that it found.
#include <algorithm>

#include "check.h"
#include "lagging_broadcast.h"

namespace fastcomm::testing {
namespace {

/// Does `what` as soon as somebody is about to read whether `peer` is dead, and lets `peer` die.
template <class What>
void before_death(RankWorld& world, int peer, const What& what) {
  world.bells().before_death_is_read = [&world, peer, what](int looked_at) {
    if (looked_at != peer) return;
    world.bells().before_death_is_read = nullptr;
    what();
    world.bells().dead[peer].store(true);
  };
}

/// A peer that announces that it leaves and ends its process in the middle of a look has left, not
/// died.
CASE(leave) {
  RankWorld world(2);
  world.stop_progress();
  auto operation = world.at(0).start(barrier_call(), kTimeout, nullptr);
  before_death(world, 1, [&] { world.at(1).leave(); });
  world.at(0).examine();
  const Failure failure = failure_of(*operation);
  EXPECT(failure.code == ErrorCode::kPeerLeft, failure.text);
}

/// A peer that gives the group up and ends its process in the middle of a look has said why.
CASE(poison) {
  RankWorld world(2);
  world.stop_progress();
  auto operation = world.at(0).start(barrier_call(), kTimeout, nullptr);
  before_death(world, 1, [&] {
    world.at(1).abort("rank 1 wants no more");
    world.at(1).leave();
  });
  world.at(0).examine();
  const Failure failure = failure_of(*operation);
  EXPECT(failure.code == ErrorCode::kPoisoned, failure.text);
  EXPECT(failure.text.find("rank 1 wants no more") != std::string::npos, failure.text);
}

/// A program that ends properly right after its last operation fails nobody who is still in that
/// one. A broadcast ends for a reader before the root has heard of every other reader.
CASE(exit) {
  constexpr int kRoot = 0, kSlow = 1, kFast = 2;
  RankWorld world(3);
  const LaggingBroadcast one(world, kRoot, kSlow);
  EXPECT(one.done(kFast) && !one.done(kRoot) && !one.done(kSlow));
  before_death(world, kFast, [&] { world.at(kFast).leave(); });
  one.expect_good_end(world);
}

/// A rank that gave up an operation in place has its tensor back, and writes to it. A slower peer
/// that reduces it only then must not take the sum for good, nor let anybody else do so.
CASE(in_place) {
  constexpr int kQuitter = 0, kWaiting = 1, kSlow = 2, kSize = 3;
  constexpr uint64_t kCount = 1000;
  struct alignas(512) Message {  // from 64 on: passes for shared (rank_world.h)
    float unused[16];
    float data[kCount];
  };
  for (const char* how : {"abort", "leave", "timeout"}) {
    RankWorld world(kSize);
    world.stop_progress();
    std::vector<Message> messages(kSize);
    std::vector<std::shared_ptr<Operation>> operations(kSize);
    for (int rank : {kSlow, kQuitter, kWaiting}) {
      std::fill_n(messages[rank].data, kCount, 1.f);
      const bool brief = rank == kQuitter && how == std::string("timeout");
      operations[rank] = world.at(rank).start(sum_call(messages[rank].data, kCount),
                                              brief ? Milliseconds(1) : kTimeout, nullptr);
      world.at(rank).poll();  // the slow rank says where its tensor is, and stops there
    }
    world.at(kQuitter).poll();
    EXPECT(operations[kQuitter]->direct() && operations[kWaiting]->direct());
    EXPECT(!operations[kSlow]->direct() && !operations[kQuitter]->done());
    if (how == std::string("abort")) world.at(kQuitter).abort("rank 0 wants no more");
    if (how == std::string("leave")) world.at(kQuitter).leave();
    pause(5000);
    world.at(kQuitter).examine();
    EXPECT(operations[kQuitter]->done(), how);
    std::fill_n(messages[kQuitter].data, kCount, 100.f);
    for (int round = 0; round < 10; ++round) {
      for (int rank : {kSlow, kWaiting}) {
        world.at(rank).poll();
        world.at(rank).examine();
      }
    }
    for (int rank : {kSlow, kWaiting}) {
      EXPECT(operations[rank]->done(), how, " rank ", rank);
      if (!operations[rank]->done()) continue;
      const Failure failure = failure_of(*operations[rank]);
      const auto& data = messages[rank].data;
      const bool right = std::all_of(data, data + kCount, [](float x) { return x == 3.f; });
      EXPECT(failure.failed || right, how, " rank ", rank, " ended well with a wrong sum");
      EXPECT(!failure.failed || names(failure.text, kQuitter), failure.text);
    }
    // After the failure nothing is different from any other.
    EXPECT(failure_of(*world.at(kSlow).run(barrier_call(), kTimeout, nullptr)).failed);
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
