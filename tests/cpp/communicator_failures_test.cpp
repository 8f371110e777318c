// How operations of a communicator fail: ranks that are gone, dead, or call something else. Late
// ones are in communicator_timeouts_test.cpp.
//
//   communicator_failures_test CASE SEED
#include <pthread.h>

#include <atomic>

#include "check.h"
#include "lagging_broadcast.h"

namespace fastcomm::testing {
namespace {

/// Every rank learns that the calls differ, whoever looks first, and nothing is written.
CASE(mismatch) {
  for (int round = 0; round < 40; ++round) {
    const int size = 2 + round % 4;
    RankWorld world(size);
    world.run([&](int rank) {
      std::mt19937_64 own(seed + 100 * round + rank);
      std::vector<float> data(4000, static_cast<float>(rank)), before = data;
      // The last rank differs in size, kind, root or algorithm.
      Call call = sum_call(data.data(), 1000);
      if (rank == size - 1) {
        switch (round % 5) {
          case 0:
            call.count = 1001;
            break;
          case 1:
            call.count = 3;
            break;
          case 2:
            call = broadcast_call(data.data(), 1000, 0);
            break;
          case 3:
            call = barrier_call();
            break;
          default:
            call.dtype = DType::kInt32;
        }
      }
      pause(own() % 400);
      const Failure failure = failure_of(*carry_out(world.at(rank), call, own() % 2 != 0));
      EXPECT(failure.failed && failure.code == ErrorCode::kMismatch, failure.text);
      // Its own finding, with both calls, not hearsay.
      EXPECT(failure.text.find("No memory was touched") != std::string::npos, failure.text);
      EXPECT(failure.text.find("gave the group up") == std::string::npos, failure.text);
      const std::string culprit = concat("peer ", size - 1, ", ");
      EXPECT((failure.text.find(culprit) != std::string::npos) == (size > 2), failure.text);
      EXPECT(data == before, "memory was touched");
      auto later = world.at(rank).run(barrier_call(), kTimeout, nullptr);
      EXPECT(failure_of(*later).failed);
    });
  }
}

/// Operations that the leaving rank took part in end well on every rank; the next one does not.
CASE(leave) {
  for (int round = 0; round < 60; ++round) {
    const int size = 2 + round % 4;
    const int leaver = static_cast<int>((seed + round) % size);
    RankWorld world(size);
    world.run([&](int rank) {
      std::vector<float> data(round % 2 == 0 ? 3000 : 8, 1.f);
      Call call = sum_call(data.data(), data.size());
      if (round % 3 == 0) call = broadcast_call(data.data(), data.size(), round % size);
      auto first = world.at(rank).run(call, kTimeout, nullptr);
      EXPECT(!failure_of(*first).failed, failure_of(*first).text);
      if (rank == leaver) return world.at(rank).leave();
      float value = 0;
      const Failure failure = failure_of(*carry_out(world.at(rank), sum_call(&value, 1), true));
      EXPECT(failure.failed && failure.code == ErrorCode::kPeerLeft, failure.text);
      EXPECT(names(failure.text, leaver), failure.text);
    });
    EXPECT(failure_of(*world.at(leaver).run(barrier_call(), kTimeout, nullptr)).code ==
           ErrorCode::kPoisoned);
  }
}

/// A failure in a later operation does not reach a rank that is still in an earlier one: the peers
/// in trouble have done their part of that.
CASE(trouble_later) {
  constexpr int kSlow = 0, kFast = 1, kRoot = 2, kLeaver = 3;
  RankWorld world(4);
  const LaggingBroadcast first(world, kRoot, kSlow);
  EXPECT(first.done(kFast) && first.done(kLeaver) && !first.done(kSlow) && !first.done(kRoot));
  world.at(kLeaver).leave();
  float value = 0;
  auto second = world.at(kFast).start(sum_call(&value, 1), kTimeout, nullptr);
  world.at(kFast).examine();
  EXPECT(failure_of(*second).code == ErrorCode::kPeerLeft, failure_of(*second).text);
  first.expect_good_end(world);
  second = world.at(kRoot).start(sum_call(&value, 1), kTimeout, nullptr);
  world.at(kRoot).examine();
  EXPECT(failure_of(*second).code == ErrorCode::kPeerLeft, failure_of(*second).text);
}

/// A rank that gives up an operation on memory that its peers may write to says so, whatever made
/// it give up; one that ends well, and one whose memory nobody was told about, do not.
CASE(quarantine) {
  constexpr uint64_t kCount = 1000;
  struct alignas(512) Message {  // from 64 on: passes for shared (rank_world.h)
    float unused[16];
    float data[kCount];
  };
  for (const bool leaves : {false, true}) {
    RankWorld world(3);
    std::vector<Message> messages(3);
    const auto call = [&](int rank) { return sum_call(messages[rank].data, kCount); };
    world.run([&](int rank) {
      auto good = world.at(rank).run(call(rank), kTimeout, nullptr);
      EXPECT(good->direct() && !failure_of(*good).failed);
    });
    EXPECT(world.bells().quarantine.empty());
    world.stop_progress();
    auto pending = world.at(0).start(call(0), Milliseconds(1), nullptr);
    auto behind = world.at(0).start(call(0), Milliseconds(1), nullptr);
    world.at(0).poll();
    pause(5000);
    if (leaves) {
      world.at(0).leave();
    } else {
      world.at(0).examine();
    }
    EXPECT(failure_of(*pending).failed && failure_of(*behind).failed);
    const auto& kept = world.bells().quarantine;
    EXPECT(kept.size() == 1, kept.size());
    if (kept.empty()) continue;
    EXPECT(kept[0].first == reinterpret_cast<uint64_t>(messages[0].data));
    EXPECT(kept[0].second == kCount * sizeof(float));
  }
}

/// After abort() or leave() nobody touches the memory of pending operations any more, not even an
/// progress thread in the middle of a step, and peers learn of it.
CASE(abort) {
  for (int round = 0; round < 20; ++round) {
    // Large slots: a step takes long enough to be met in the middle.
    RankWorld world(2, 1, 0, scratch_layout({256, 1 << 18, 0}, 2));
    std::atomic<bool> aborted{false};
    world.run([&](int rank) {
      std::mt19937_64 own(seed + round);
      std::vector<float> data(1 << 19, 1.f);
      auto operation = world.at(rank).start(sum_call(data.data(), data.size()), kTimeout, nullptr);
      if (rank == 0) {
        pause(own() % 3000);
        const bool was_done = operation->done();
        if (round % 2 == 0) {
          world.at(0).abort("rank 0 wants no more");
        } else {
          world.at(0).leave();
        }
        world.at(0).wait(*operation, Deadline::max(), nullptr);  // it may have ended well just now
        if (was_done || failure_of(*operation).failed) data.assign(data.size(), 5.f);  // or a race
        aborted.store(true);
        return;
      }
      world.at(rank).wait(*operation, Deadline::max(), nullptr);
      auto later = world.at(rank).run(barrier_call(), kTimeout, nullptr);
      const Failure failure = failure_of(*later);
      EXPECT(failure.failed, "nobody told of the abort");
      const bool left = failure.code == ErrorCode::kPeerLeft;
      EXPECT(left == (round % 2 == 1), failure.text);
      EXPECT(left || failure.text.find("wants no more") != std::string::npos, failure.text);
    });
  }
}

/// A rank that hears of an abort second-hand blames the first rank, not the messenger, and is told
/// the full reason, however many messengers there were.
CASE(relayed) {
  constexpr int kSize = 6;
  RankWorld world(kSize);
  world.at(kSize - 1).abort("this is the reason");
  for (int rank = kSize - 2; rank >= 0; --rank) {
    auto operation = world.at(rank).run(barrier_call(), kTimeout, nullptr);
    const Failure failure = failure_of(*operation);
    EXPECT(failure.code == ErrorCode::kPoisoned, failure.text);
    EXPECT(failure.text.rfind(concat("[rank ", rank, " of 6, peer 5,"), 0) == 0, failure.text);
    EXPECT(failure.text.find("this is the reason") != std::string::npos, failure.text);
  }
}

/// A synchronous call that a signal interrupts: the caller's exception comes out, peers hear of it.
CASE(interrupt) {
  RankWorld world(2);
  std::atomic<bool> interrupted{false};
  world.run([&](int rank) {
    if (rank == 1) {
      while (!interrupted) pause(1000);
      auto operation = world.at(1).run(barrier_call(), kTimeout, nullptr);
      auto later = world.at(1).run(barrier_call(), kTimeout, nullptr);
      EXPECT(failure_of(*later).code == ErrorCode::kPoisoned, failure_of(*later).text);
      EXPECT(failure_of(*later).text.find("was interrupted") != std::string::npos);
      return;
    }
    bool came_out = false;
    try {
      world.at(0).run(barrier_call(), kTimeout, [&] {
        interrupted = true;
        throw 42;
      });
    } catch (int signal) {
      came_out = signal == 42;
    }
    EXPECT(came_out);
    EXPECT(!world.at(0).pending());
  });
}

/// A dead peer is named even where another announced earlier that it leaves, and then died.
CASE(lost) {
  RankWorld world(3);
  std::thread deaths([&] {
    pause(50000);
    world.at(0).leave();
    world.bells().dead[0].store(true);
    pause(50000);
    world.bells().dead[1].store(true);
  });
  // Rank 0 has come to the operation and gone; rank 1 never comes.
  auto first = world.at(0).start(barrier_call(), kTimeout, nullptr);
  const auto start = Clock::now();
  auto operation = world.at(2).run(barrier_call(), Milliseconds(5000), nullptr);
  const Failure failure = failure_of(*operation);
  deaths.join();
  EXPECT(failure.code == ErrorCode::kPeerLost && names(failure.text, 1), failure.text);
  EXPECT(seconds_since(start) < 1);
}

/// A small operation started after a large one leaves that one to the progress thread.
CASE(start_is_short) {
  RankWorld world(2, 1, 0, scratch_layout({256, 1 << 16, 0}, 2));
  std::thread::id where[2];
  world.run([&](int rank) {
    std::vector<float> data(1 << 20, 1.f);
    float one = 1.f;
    auto large = world.at(rank).start(sum_call(data.data(), data.size()), kTimeout,
                                      [&, rank](const Operation&, const std::exception_ptr&) {
                                        where[rank] = std::this_thread::get_id();
                                      });
    auto small = world.at(rank).start(sum_call(&one, 1), kTimeout, nullptr);
    while (!small->done()) pause(200);
    EXPECT(where[rank] != std::this_thread::get_id(), "the caller drove the large operation");
  });
}

/// Where no thread can be started for asynchronous operations, they fail, here and on the peers.
CASE(no_thread) {
  RankWorld world(2);
  pthread_attr_t usual, huge;
  pthread_getattr_default_np(&usual);
  pthread_getattr_default_np(&huge);
  pthread_attr_setstacksize(&huge, size_t{1} << 46);
  pthread_setattr_default_np(&huge);
  auto operation = world.at(0).start(barrier_call(), kTimeout, nullptr);
  pthread_setattr_default_np(&usual);
  const Failure own = failure_of(*operation);
  EXPECT(own.code == ErrorCode::kSystem, own.text);
  EXPECT(own.text.find("ulimit -u") != std::string::npos, own.text);
  EXPECT(own.text.find("barrier, sequence 0") != std::string::npos, own.text);
  world.at(1).run(barrier_call(), kTimeout, nullptr);  // rank 0 may have done its part of it
  const Failure told = failure_of(*world.at(1).run(barrier_call(), kTimeout, nullptr));
  EXPECT(told.code == ErrorCode::kPoisoned && names(told.text, 0), told.text);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
