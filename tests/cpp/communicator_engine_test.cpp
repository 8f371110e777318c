// Operations that are a stock engine's: how a group that fails ends them, and how they fail the group.
//
//   communicator_engine_test CASE SEED
#include "meetings.h"

namespace fastcomm::testing {
namespace {

/// What ends a group ends its open operations, once each, and they stay the engine's until closed. A
/// closed one hears nothing more.
void test_lost(uint64_t) {
  RankWorld world(3);
  std::deque<Told> first, second;
  const auto closed = all_meet(world, first);
  const auto open = all_meet(world, second);
  for (int rank = 0; rank < 3; ++rank) world.at(rank).close(*closed[rank]);
  world.at(0).abandon(*open[0], "rank 0 wants no more");
  for (int rank = 0; rank < 3; ++rank) {
    until_lost(world.at(rank), second[rank]);
    EXPECT(second[rank].lost == 1 && second[rank].why.code == ErrorCode::kPoisoned);
    EXPECT(second[rank].why.text.find("wants no more") != std::string::npos, second[rank].why.text);
    EXPECT(first[rank].lost == 0);
    EXPECT(world.at(rank).engine_at_work() && !world.at(rank).pending());
    world.at(rank).close(*open[rank]);
    world.at(rank).close(*open[rank]);
    EXPECT(!world.at(rank).engine_at_work());
    world.at(rank).abort("again");
    EXPECT(second[rank].lost == 1);
  }
}

/// Trouble behind an open operation leaves it to the engine, which may have all that it needs.
void test_trouble_later(uint64_t) {
  RankWorld world(2);
  world.stop_engines();
  std::deque<Told> told;
  const auto open = all_meet(world, told);
  float value = 0;
  world.run([&](int rank) {
    const Call call = rank == 0 ? sum_call(&value, 1) : barrier_call();
    const auto later = world.at(rank).run(call, kTimeout, nullptr);
    EXPECT(failure_of(*later).code == ErrorCode::kMismatch, failure_of(*later).text);
    world.at(rank).examine();
    EXPECT(told[rank].lost == 0, told[rank].why.text);
    world.at(rank).close(*open[rank]);
    world.at(rank).examine();
    EXPECT(told[rank].lost == 0);
  });
}

/// ... but not for ever: an engine that has not ended half a second later does not, most likely.
void test_stalled(uint64_t) {
  RankWorld world(3);
  world.stop_engines();
  std::deque<Told> told;
  const auto open = all_meet(world, told);
  world.bells().dead[1].store(true);
  world.run([&](int rank) {
    if (rank == 1) return;
    const double taken = until_lost(world.at(rank), told[rank]);
    EXPECT(taken > 0.45 && taken < 5, taken);
    EXPECT(told[rank].why.code == ErrorCode::kPeerLost, told[rank].why.text);
    EXPECT(names(told[rank].why.text, 1), told[rank].why.text);
    world.at(rank).close(*open[rank]);
  });
}

/// An engine that refuses a call on every rank harms nothing; on one alone, the others are told.
void test_refuse(uint64_t) {
  RankWorld world(3);
  std::deque<Told> everywhere, here;
  const auto refused = all_meet(world, everywhere);
  for (int rank = 0; rank < 3; ++rank) world.at(rank).refuse(*refused[rank]);
  const auto open = all_meet(world, here);
  world.at(1).refuse(*open[1]);
  for (int rank : {0, 2}) {
    until_lost(world.at(rank), here[rank]);
    const std::string& text = here[rank].why.text;
    EXPECT(here[rank].why.code == ErrorCode::kPoisoned, text);
    EXPECT(text.find("refused the call of rank 1") != std::string::npos, text);
    world.at(rank).close(*open[rank]);
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT(everywhere[rank].lost == 0 && !world.at(rank).engine_at_work());
  }
  EXPECT(here[1].lost == 0);
}

/// An engine's error is a death's where there was one, also where the kernel tells of it later; and
/// who comes second says what the first said.
void test_engine_failed(uint64_t) {
  const auto failed = [](Communicator& group, const Operation& operation, ErrorCode code) {
    Failure failure;
    failure.text = error_of(
        [&] { std::rethrow_exception(group.engine_failed(operation, code, "it said so")); },
        &failure.code);
    return failure;
  };
  {
    RankWorld world(3);
    world.stop_engines();
    std::deque<Told> told;
    const auto open = all_meet(world, told);
    std::thread kernel([&] {
      pause(30000);
      world.bells().dead[2].store(true);
    });
    const Failure late = failed(world.at(0), *open[0], ErrorCode::kSystem);
    kernel.join();
    EXPECT(late.code == ErrorCode::kPeerLost && names(late.text, 2), late.text);
    const Failure second = failed(world.at(1), *open[1], ErrorCode::kSystem);
    EXPECT(second.code == ErrorCode::kPeerLost && names(second.text, 2), second.text);
    EXPECT(told[0].lost == 0 && told[1].lost == 0, "closed before the group failed");
    EXPECT(!world.at(0).engine_at_work());
  }
  for (const ErrorCode code : {ErrorCode::kSystem, ErrorCode::kTimeout}) {
    RankWorld world(2);
    world.stop_engines();
    std::deque<Told> told;
    const auto open = all_meet(world, told);
    const Failure failure = failed(world.at(0), *open[0], code);
    EXPECT(failure.code == code && failure.text.find("it said so") != std::string::npos,
           failure.text);
    until_lost(world.at(1), told[1]);
    EXPECT(told[1].why.text.find("it said so") != std::string::npos, told[1].why.text);
    world.at(1).close(*open[1]);
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"lost", test_lost},
                    {"trouble_later", test_trouble_later},
                    {"stalled", test_stalled},
                    {"refuse", test_refuse},
                    {"engine_failed", test_engine_failed}});
}
