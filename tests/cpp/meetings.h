// What tests of meetings share: a meeting whose engine ends when the test says so, and what its rank
// is told of it.
#pragma once

#include <deque>

#include "check.h"
#include "failure.h"
#include "rank_world.h"

namespace fastcomm::testing {

constexpr auto kTimeout = Milliseconds(60000);

inline Call meeting_call(uint64_t count = 10) {
  Call call;
  call.kind = OpKind::kReduceScatter;
  call.dtype = DType::kFloat32;
  call.count = count;
  call.meeting = true;
  return call;
}

/// What a rank is told of one of its meetings.
struct Told {
  std::atomic<int> met{0};
  std::atomic<int> lost{0};
  std::atomic<bool> failed{false};  // one of the two told of an error
  Failure why;                      // which one; read it once that is so

  void note(const std::exception_ptr& error) {
    if (error == nullptr) return;
    why.text = error_of([&] { std::rethrow_exception(error); }, &why.code);
    failed = true;
  }
  bool open() const { return met == 1 && !failed; }
};

/// A meeting whose engine ends when the test says so.
inline std::shared_ptr<Operation> meet(Communicator& group, Told& told,
                                       const Call& call = meeting_call(),
                                       Milliseconds timeout = kTimeout, bool async = false) {
  return group.meet(
      call, timeout, async, nullptr,
      [&](const Operation&, const std::exception_ptr& error) {
        told.note(error);
        ++told.met;
      },
      [&](const Operation&, const std::exception_ptr& error) {
        told.note(error);
        ++told.lost;
      });
}

/// Every rank meets; nobody's engine has ended.
inline std::vector<std::shared_ptr<Operation>> all_meet(RankWorld& world, std::deque<Told>& told) {
  std::vector<std::shared_ptr<Operation>> operations(world.size());
  told.resize(world.size());
  world.run([&](int rank) { operations[rank] = meet(world.at(rank), told[rank]); });
  for (int rank = 0; rank < world.size(); ++rank) EXPECT(told[rank].open(), told[rank].why.text);
  return operations;
}

/// Looks until `told` has lost its operation. Returns the seconds it took.
inline double until_lost(Communicator& group, const Told& told, double most = 10) {
  const auto start = Clock::now();
  while (told.lost == 0 && seconds_since(start) < most) {
    group.examine();
    pause(500);
  }
  return seconds_since(start);
}

}  // namespace fastcomm::testing
