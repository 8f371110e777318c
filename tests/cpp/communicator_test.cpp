// Communicators of ranks as threads: random sequences of operations against the plain reference.
// How operations fail is in communicator_failures_test.cpp.
//
//   communicator_test CASE SEED
#include <array>
#include <map>

#include "check.h"
#include "random_operations.h"
#include "rank_world.h"

namespace fastcomm::testing {
namespace {

/// How many random operations, over all ranks, went from buffer to buffer, and how many through
/// slots.
struct Paths {
  int direct = 0, pipelined = 0;
};
Paths run_random(RankWorld& world, uint64_t seed, int operations) {
  std::atomic<int> direct{0}, pipelined{0};
  std::mt19937_64 shared(seed);
  std::vector<Drawn> drawn;
  for (int i = 0; i < operations; ++i) drawn.push_back(draw(shared, world.size()));
  world.run([&](int rank) {
    std::mt19937_64 own(seed * 31 + rank);
    std::vector<std::unique_ptr<Running>> all;
    Communicator& group = world.at(rank);
    for (const Drawn& each : drawn) {
      all.push_back(std::make_unique<Running>());
      Running& running = *all.back();
      const Call call = running.prepare(each, rank);
      running.async = each.async && own() % 4 != 0;  // ranks need not agree on it
      if (running.async) {
        running.operation =
            group.start(call, kTimeout, [&running](const Operation&, const std::exception_ptr&) {
              running.finished.fetch_add(1);
            });
      } else {
        running.operation = group.run(call, kTimeout, nullptr);
      }
      if (own() % 8 == 0) {  // wait for one that was started
        group.wait(*all[own() % all.size()]->operation, Deadline::max(), nullptr);
      }
      if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    }
    for (auto& running : all) {
      group.wait(*running->operation, Deadline::max(), nullptr);
      running->check(rank);
      const bool large = running->operation->algorithm() == Algorithm::kPipelined;
      if (running->operation->direct()) {
        ++direct;
      } else if (large) {
        ++pipelined;
      }
    }
    EXPECT(!group.pending());
  });
  return {direct, pipelined};
}

/// Like calls use one operation again, unless somebody holds it; sizes and kinds are told apart.
CASE(again) {
  RankWorld world(3);
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    std::vector<float> data(2000);
    std::map<uint64_t, const Operation*> first;
    std::shared_ptr<Operation> held;
    for (int turn = 0; turn < 400; ++turn) {
      // They go through slots in blocks; shorter ones need no operation.
      const uint64_t count = std::array<uint64_t, 4>{600, 700, 1200, 2000}[turn % 4];
      std::fill(data.begin(), data.end(), static_cast<float>(rank + turn));
      float* const place = data.data() + (turn % 3 == 0 && count < 2000 ? 5 : 0);
      auto operation = group.run(sum_call(place, count), kTimeout, nullptr);
      EXPECT(operation->error() == nullptr && operation->header().sequence == 2 * turn + 0ULL);
      for (uint64_t i = 0; i < count; ++i) EXPECT(place[i] == 3 * turn + 3, turn, " at ", i);
      if (operation == held) EXPECT(false, "used again while it was held");
      if (turn < 4) first[count] = operation.get();
      if (held == nullptr && turn >= 4 && turn < 200) EXPECT(operation.get() == first[count]);
      if (turn == 200) held = operation;
      const auto barrier = group.run(barrier_call(), kTimeout, nullptr);
      EXPECT(barrier->error() == nullptr);
    }
  });
}

/// An operation that is used again times out anew, and tells what this call was.
CASE(again_late) {
  RankWorld world(2);
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    std::vector<float> own(600);
    for (int turn = 0; turn < 3; ++turn) group.run(sum_call(own.data(), 600), kTimeout, nullptr);
    if (rank == 1) return;
    const auto start = Clock::now();
    const auto operation = group.run(sum_call(own.data(), 600), Milliseconds(200), nullptr);
    ErrorCode code{};
    const std::string text = error_of([&] { std::rethrow_exception(operation->error()); }, &code);
    EXPECT(code == ErrorCode::kTimeout && text.find("sequence 3]") != std::string::npos, text);
    EXPECT(Clock::now() - start > Milliseconds(190));
  });
}

/// A short call needs no operation, unless a peer is late; on other ranks it may be one. They are
/// in one order with all others, and count alike.
CASE(shortly) {
  RankWorld world(3);
  std::atomic<int> without{0}, taken_over{0};
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    std::mt19937_64 own(seed + rank);
    std::vector<float> data(40), blocks(700);
    for (int turn = 0; turn < 600; ++turn) {
      const uint64_t count = std::array<uint64_t, 5>{1, 40, 7, 0, 40}[turn % 5];
      std::fill(data.begin(), data.end(), static_cast<float>(rank + turn));
      const auto draw = own() % 16;
      if (draw == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
      std::shared_ptr<Operation> operation;
      if (draw < 4) {  // ranks need not agree on it
        operation = group.start(sum_call(data.data(), count), kTimeout, nullptr);
        group.wait(*operation, Deadline::max(), nullptr);
      } else if (const auto parts = short_of(sum_call(data.data(), count)); draw < 10) {
        operation = group.run(*parts, CallRecord{}, kTimeout, nullptr);
        ++(operation->header().sequence == group.sequence() - 1 ? taken_over : without);
      } else {
        operation = group.run(sum_call(data.data(), count), kTimeout, nullptr);
      }
      EXPECT(operation->done() && operation->error() == nullptr);
      for (uint64_t i = 0; i < 40; ++i) {
        EXPECT(data[i] == (i < count ? 3 * turn + 3 : rank + turn), turn, " at ", i);
      }
      if (turn % 7 == 0) group.run(barrier_call(), kTimeout, nullptr);
      if (turn % 11 == 0) {  // one that is under way keeps the next ones waiting
        std::fill(blocks.begin(), blocks.end(), 1.f);
        const auto before = group.start(sum_call(blocks.data(), 700), kTimeout, nullptr);
        group.run(barrier_call(), kTimeout, nullptr);
        EXPECT(before->done() && blocks[699] == 3.f);
      }
    }
    EXPECT(group.sequence() == 600 + 86 + 2 * 55, group.sequence());
  });
  EXPECT(without > 0 && taken_over > 0, without, " without, ", taken_over, " taken over");
}

/// 2 to 8 ranks.
CASE(random) {
  const int operations = std::getenv("FC_TEST_OPERATIONS") != nullptr
                             ? std::atoi(std::getenv("FC_TEST_OPERATIONS"))
                             : 60;
  Paths all;
  for (int size = 1; size <= 8; ++size) {
    RankWorld world(size);
    const Paths paths = run_random(world, seed * 100 + size, operations);
    EXPECT(paths.direct % size == 0, "ranks of one operation took different paths");
    all.direct += paths.direct;
    all.pipelined += paths.pipelined;
  }
  EXPECT(all.direct > 0 && all.pipelined > 0, all.direct, " direct, ", all.pipelined, " pipelined");
}

/// Flags that start just below 2^32 and wrap while operations run.
CASE(wrap) {
  for (int size : {2, 3, 5}) {
    for (uint32_t below : {1u, 2u, 3u, 50u}) {
      RankWorld world(size, 1, 0u - below);
      run_random(world, seed + below, 30);
      EXPECT(world.at(0).pending() == false);
    }
    RankWorld world(size, 1, 0x7fffffffu - 20);  // the signed distance must not mind either
    run_random(world, seed, 30);
  }
}

/// Two groups, used in opposite order by even and odd ranks: nobody may wait for the other group.
CASE(opposite) {
  for (int size : {2, 3, 4}) {
    RankWorld world(size, 2);
    world.run([&](int rank) {
      std::mt19937_64 own(seed + rank);
      for (int round = 0; round < 20; ++round) {
        std::vector<float> data[2];
        std::shared_ptr<Operation> operations[2];
        for (int turn = 0; turn < 2; ++turn) {
          const int group = (turn + rank) % 2;
          data[group].assign(1000 * group + 100, static_cast<float>(rank + group));
          operations[group] =
              world.at(rank, group)
                  .start(sum_call(data[group].data(), data[group].size()), kTimeout, nullptr);
          if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        for (int turn = 0; turn < 2; ++turn) {  // wait in opposite order too
          const int group = (turn + rank) % 2;
          world.at(rank, group).wait(*operations[group], Deadline::max(), nullptr);
          const float sum = static_cast<float>(size * (size - 1) / 2 + size * group);
          EXPECT(operations[group]->error() == nullptr);
          EXPECT(data[group].front() == sum && data[group].back() == sum, "round ", round);
        }
      }
    });
  }
}

/// A synchronous call after asynchronous ones, several threads that wait for the same operation,
/// and continuations that issue operations of their own.
CASE(threads) {
  RankWorld world(3);
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    for (int round = 0; round < 30; ++round) {
      std::vector<float> first(2000, 1.f), second(2000, 2.f), third(10, 3.f);
      std::shared_ptr<Operation> nested;
      std::atomic<bool> issued{false};
      auto a = group.start(sum_call(first.data(), first.size()), kTimeout,
                           [&](const Operation&, const std::exception_ptr&) {
                             nested = group.start(barrier_call(), kTimeout, nullptr);
                             issued.store(true);
                           });
      std::thread helper([&] { group.wait(*a, Deadline::max(), nullptr); });
      group.wait(*a, Deadline::max(), nullptr);
      helper.join();
      EXPECT(issued.load() && first[7] == 3.f);
      auto b = group.start(sum_call(second.data(), second.size()), kTimeout, nullptr);
      auto c = group.run(sum_call(third.data(), third.size()), kTimeout, nullptr);
      // What came before it has run, but another thread may not have told its waiters yet.
      EXPECT(c->done() && second[1999] == 6.f && third[9] == 9.f);
      group.wait(*nested, Deadline::max(), nullptr);
      group.wait(*b, Deadline::max(), nullptr);
    }
  });
}

/// A finished operation releases its callback and what that holds.
CASE(release) {
  RankWorld world(2);
  world.run([&](int rank) {
    float value = 1.f;
    auto held = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = held;
    auto operation =
        world.at(rank).start(sum_call(&value, 1), kTimeout,
                             [held](const Operation&, const std::exception_ptr&) { (void)*held; });
    held.reset();
    world.at(rank).wait(*operation, Deadline::max(), nullptr);
    EXPECT(watch.expired());
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
