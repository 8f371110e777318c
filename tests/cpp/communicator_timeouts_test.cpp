// Ranks that are late: whom a timeout names, when it comes, and what it leaves as it is.
//
//   communicator_timeouts_test CASE SEED
#include "check.h"
#include "failure.h"
#include "rank_world.h"

namespace fastcomm::testing {
namespace {

constexpr auto kTimeout = Milliseconds(60000);

/// The error comes on time and names who is late; `timeout` in ms.
void test_late(uint64_t) {
  for (const int timeout : {100, 400}) {
    double worst = 0;
    for (int attempt = 0; attempt < 3; ++attempt) {  // the machine may be busy once or twice
      worst = 0;
      RankWorld world(3);
      std::atomic<double> taken[3] = {};
      world.run([&](int rank) {
        if (rank == 1) return pause(timeout * 2000);
        std::vector<float> data(2000, 1.f);
        const auto start = Clock::now();
        auto operation =
            world.at(rank).run(sum_call(data.data(), data.size()), Milliseconds(timeout), nullptr);
        taken[rank] = seconds_since(start);
        const Failure failure = failure_of(*operation);
        EXPECT(failure.failed && failure.code == ErrorCode::kTimeout, failure.text);
        EXPECT(names(failure.text, 1), failure.text);
        EXPECT(data[0] == 1.f && data[1999] == 1.f);
      });
      for (int rank : {0, 2}) {
        // A rank may hear of the other's timeout a moment before its own.
        EXPECT(taken[rank] > timeout * 0.97e-3, taken[rank].load());
        worst = std::max(worst, taken[rank].load());
      }
      if (worst < timeout * 1.1e-3) break;
    }
    EXPECT(worst < timeout * 1.1e-3, worst, " s instead of ", timeout, " ms");
  }
}

/// A call that starts after a peer has given the group up raises, whatever is there already of what it needs.
void test_too_late(uint64_t) {
  constexpr int kSize = 3, kLate = 1;
  std::vector<float> data(3 * 700000, 1.f);
  const std::vector<Call> calls = {sum_call(data.data(), 0),          sum_call(data.data(), 2),
                                   sum_call(data.data(), 1000),       sum_call(data.data(), 700000),
                                   broadcast_call(data.data(), 5, 0), barrier_call()};
  for (const Call& call : calls) {
    for (const bool async : {false, true}) {
      for (const bool of_another : {false, true}) {
        RankWorld world(kSize);
        // What the peers did before they gave up is enough for the late rank.
        std::vector<float> others(call.count + 1, 1.f);
        Call theirs = call;
        theirs.input = theirs.output = others.data();
        world.at(0).start(theirs, kTimeout, nullptr);
        world.at(2).start(theirs, kTimeout, nullptr);
        world.at(of_another ? 2 : 0).abort("it gave up");
        Communicator& late = world.at(kLate);
        std::shared_ptr<Operation> operation;
        if (async) {
          operation = late.start(call, kTimeout, nullptr);
          late.wait(*operation, Deadline::max(), nullptr);
        } else {
          operation = late.run(call, kTimeout, nullptr);
        }
        EXPECT(failure_of(*operation).code == ErrorCode::kPoisoned,
               "ended well: ", operation->describe());
      }
    }
  }
}

/// A rank that hears of a timeout from a peer is told who is late, however long the calls' names are:
/// a control block has no room for all of them.
void test_told(uint64_t) {
  constexpr int kLate = 1, kSize = 4;
  RankWorld world(kSize);
  world.run([&](int rank) {
    Call call;  // with the longest possible name
    call.kind = OpKind::kAllToAll;
    call.messages = std::make_shared<Messages>(kSize);
    call.detail = std::string(kDetailBytes, 'x');
    EXPECT(!failure_of(*world.at(rank).run(call, kTimeout, nullptr)).failed);
    if (rank == kLate || rank == kLate + 1) return;
    const Milliseconds timeout = rank == 0 ? Milliseconds(100) : kTimeout;
    const Failure failure = failure_of(*world.at(rank).run(call, timeout, nullptr));
    EXPECT(failure.failed && failure.code == ErrorCode::kTimeout, failure.text);
    for (int late : {kLate, kLate + 1}) {
      const size_t at = failure.text.find("not arrived: ");
      EXPECT(at != std::string::npos && names(failure.text.substr(at), late), failure.text);
    }
  });
}

/// A rank that waits only for the root does not blame it if the root waits for another.
void test_held_up(uint64_t) {
  constexpr int kWaiting = 0, kLate = 1, kRoot = 2, kSize = 3;
  RankWorld world(kSize);
  world.stop_progress();
  std::vector<std::vector<float>> data(kSize, std::vector<float>(2900));
  std::vector<std::shared_ptr<Operation>> operations;
  for (int rank = 0; rank < kSize; ++rank) {
    const Call call = broadcast_call(data[rank].data(), data[rank].size(), kRoot);
    operations.push_back(world.at(rank).start(call, Milliseconds(100), nullptr));
  }
  for (int round = 0; round < 100; ++round) {
    for (int rank : {kRoot, kWaiting}) world.at(rank).poll();
    if (operations[kLate]->step() < 3) world.at(kLate).poll();
  }
  EXPECT(operations[kWaiting]->awaited_peer() == kRoot);
  EXPECT(operations[kRoot]->awaited_peer() == kLate);
  pause(120000);
  for (int rank : {kWaiting, kRoot}) {
    world.at(rank).examine();
    const Failure failure = failure_of(*operations[rank]);
    EXPECT(failure.failed && failure.code == ErrorCode::kTimeout, failure.text);
    EXPECT(failure.text.rfind(concat("[rank ", rank, " of 3, peer 1,"), 0) == 0, failure.text);
  }
}

/// A wait(timeout) that expires harms nothing: the operation goes on, even without help.
void test_wait_timeout(uint64_t) {
  RankWorld world(2);
  world.run([&](int rank) {
    std::vector<float> data(3000, 1.f);
    if (rank == 1) pause(300000);
    auto operation = world.at(rank).start(sum_call(data.data(), data.size()), kTimeout, nullptr);
    if (rank == 0) {
      for (int i = 0; i < 4; ++i) {
        ErrorCode code{};
        const std::string text = error_of(
            [&] { world.at(0).wait(*operation, Clock::now() + Milliseconds(30), nullptr); }, &code);
        EXPECT(code == ErrorCode::kTimeout && text.find("goes on") != std::string::npos, text);
      }
      const auto start = Clock::now();
      while (!operation->done() && seconds_since(start) < 20)
        pause(1000);  // the progress thread alone
    }
    world.at(rank).wait(*operation, Deadline::max(), nullptr);
    EXPECT(!failure_of(*operation).failed && data[2999] == 2.f);
    EXPECT(!failure_of(*world.at(rank).run(barrier_call(), kTimeout, nullptr)).failed);
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"late", test_late},
                    {"too_late", test_too_late},
                    {"told", test_told},
                    {"held_up", test_held_up},
                    {"wait_timeout", test_wait_timeout}});
}
