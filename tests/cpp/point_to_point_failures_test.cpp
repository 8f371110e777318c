// How sends and receives of ranks as threads fail: calls that do not fit, ranks that are late, gone
// or dead, and what is given up or taken back.
//
//   point_to_point_failures_test CASE SEED
#include "messages.h"

namespace fastcomm::testing {
namespace {

/// Both sides learn of it, nothing is written, and later calls fail, too.
CASE(mismatch) {
  for (int round = 0; round < 24; ++round) {
    World world(3);
    world.run([&](int rank) {
      Communicator& group = world.at(rank);
      if (rank == 2) {
        std::vector<char> data(8);
        const Failure failure = failure_of_call(group, [&] { return recv(group, 0, 0, data); });
        EXPECT(failure.failed && failure.code == ErrorCode::kMismatch, failure.text);
        return;
      }
      std::mt19937_64 own(seed + round * 2 + rank);
      pause(own() % 300);
      const bool is_long = round % 3 == 0;
      std::vector<float> data(is_long ? 9000 : 8, 1.f), before = data;
      PeerCall call{rank == 1,       1 - rank,        3,
                    DType::kFloat32, data.size() - 1, reinterpret_cast<char*>(data.data())};
      if (rank == 1 && round % 2 == 0) --call.count;
      if (rank == 1 && round % 2 == 1) call.dtype = DType::kInt32;
      if (rank == 1 && round % 6 == 5) call.count = 9000;
      if (rank == 1 && round % 6 == 5)
        data.resize(9000), call.data = reinterpret_cast<char*>(data.data());
      Failure failure = failure_of_call(group, [&] { return group.post(call, nullptr); });
      if (rank == 0) {
        EXPECT(data == before, "memory was touched");
        EXPECT(failure.text.find("recv(float32") != std::string::npos, failure.text);
        EXPECT(failure.text.find("send(") != std::string::npos, failure.text);
      } else if (!failure.failed) {  // short: it had gone when the mismatch was found
        std::vector<char> more(1);
        failure = failure_of_call(group, [&] { return recv(group, 0, 0, more); });
      }
      EXPECT(failure.failed && failure.code == ErrorCode::kMismatch, failure.text);
      std::vector<char> more(1);
      failure = failure_of_call(group, [&] { return send(group, 1 - rank, 0, more); });
      EXPECT(failure.failed && failure.code == ErrorCode::kMismatch, failure.text);
      const auto all = group.run(barrier_call(), kTimeout, nullptr);
      EXPECT(failure_of(*all).code == ErrorCode::kMismatch);
    });
  }
}

CASE(timeout) {
  World world(2);
  std::vector<char> data(8), large(100000);
  std::vector<Pointer> sent;
  for (int tag : {3, 7}) sent.push_back(send(world.at(1), 0, tag, data));
  sent.push_back(send(world.at(1), 0, 9, large));
  Communicator& group = world.at(0);
  const auto never = recv(group, 1, 4, data);
  ErrorCode code{};
  // The caller's own limit harms nothing.
  std::string text = error_of(
      [&] { group.wait(*never, kTimeout, Clock::now() + Milliseconds(5), nullptr); }, &code);
  EXPECT(code == ErrorCode::kTimeout && text.find("goes on") != std::string::npos, text);
  EXPECT(!never->done());
  group.wait(*never, Milliseconds(20), Deadline::max(), nullptr);
  const Failure failure = failure_of(*never);
  EXPECT(failure.failed && failure.code == ErrorCode::kTimeout, failure.text);
  EXPECT(failure.text.find("has sent tags [3, 7, 9] that nobody received") != std::string::npos,
         failure.text);
  EXPECT(failure.text.find("recv(uint8, 8 elements) from rank 1, tag 4") != std::string::npos,
         failure.text);
  // The other side learns of it: from the long one that nobody wanted, and in the next call.
  wait(world.at(1), sent.back());
  EXPECT(failure_of(*sent.back()).code == ErrorCode::kTimeout, failure_of(*sent.back()).text);
  const Failure later = failure_of_call(world.at(1), [&] { return send(world.at(1), 0, 1, data); });
  EXPECT(later.code == ErrorCode::kTimeout, later.text);
}

/// What was sent before the leave notice arrives; nothing else does.
CASE(leave) {
  for (int round = 0; round < 20; ++round) {
    World world(3);
    world.run([&](int rank) {
      Communicator& group = world.at(rank);
      auto small = pattern(8, seed), large = pattern(kSlotBytes * 3, seed + 1);
      if (rank == 1) {
        expect_good(group, send(group, 0, 1, small));
        expect_good(group, send(group, 0, 2, large));
        return group.leave();
      }
      if (rank == 2) return group.leave();
      pause(round % 4 * 500);
      std::vector<char> got(large.size()), few(small.size());
      expect_good(group, recv(group, 1, 2, got));
      if (round % 2 == 0) {
        expect_good(group, recv(group, PeerCall::kAnyRank, 1, few));
        EXPECT(few == small && got == large);
      }
      const bool any = round % 4 < 2;
      const Failure failure =
          failure_of_call(group, [&] { return recv(group, any ? PeerCall::kAnyRank : 1, 5, few); });
      EXPECT(failure.failed && failure.code == ErrorCode::kPeerLeft, failure.text);
      EXPECT(any || names(failure.text, 1), failure.text);
      EXPECT(failure_of_call(group, [&] { return send(group, 1, 5, few); }).code ==
             ErrorCode::kPeerLeft);
    });
  }
}

/// A rank that waits for any rank when all others have left is not told to blame one that has sent
/// what it had to send; but it is told of one that did not leave in good order.
CASE(leave_any) {
  for (int round = 0; round < 12; ++round) {
    const int size = round % 4 == 3 ? 2 : 4;
    World world(size);
    world.run([&](int rank) {
      Communicator& group = world.at(rank);
      auto data = pattern(round < 8 ? 8 : kSlotBytes, seed + rank);
      if (rank != 0) {
        if (rank != size - 1) expect_good(group, send(group, 0, 1, data));
        const bool fails = round % 4 == 1 && rank == 2;
        return group.leave(fails ? "failed with ValueError: 7" : "");
      }
      std::vector<char> got(data.size());
      for (int other = 1; other < size - 1; ++other) {
        expect_good(group, recv(group, PeerCall::kAnyRank, 1, got));
      }
      if (round % 4 == 2) pause(3000);
      const Failure failure =
          failure_of_call(group, [&] { return recv(group, PeerCall::kAnyRank, 1, got); });
      EXPECT(failure.failed && failure.code == ErrorCode::kPeerLeft, failure.text);
      if (round % 4 == 1) {
        EXPECT(failure.text.find("[rank 0 of 4, peer 2, recv, ") == 0, failure.text);
        EXPECT(failure.text.find("failed with ValueError: 7") != std::string::npos, failure.text);
      } else if (size == 2) {
        EXPECT(failure.text.find("[rank 0 of 2, peer 1, recv, ") == 0, failure.text);
      } else {
        EXPECT(failure.text.find("[rank 0 of 4, recv, ") == 0, failure.text);
        EXPECT(failure.text.find("all other ranks") != std::string::npos, failure.text);
      }
    });
  }
}

/// A death ends all that waits, whatever for; a full ring and a long message are no exceptions.
CASE(lost) {
  for (int round = 0; round < 5; ++round) {
    World world(3);
    Communicator& group = world.at(0);
    std::vector<char> data(round == 2 ? 100000 : 8);
    Pointer waiting;
    if (round < 2) waiting = recv(group, round == 0 ? 1 : PeerCall::kAnyRank, 0, data);
    if (round == 2) waiting = send(group, 1, 0, data);
    for (uint32_t i = 0; round == 3 && i <= kRingCells; ++i) waiting = send(group, 1, 0, data);
    if (round == 4) waiting = recv(group, 2, 0, data);
    std::thread killer([&] {
      pause(3000);
      world.bells().dead[1].store(true);
      ring(world.bells().bells[0]);
    });
    wait(group, waiting);
    killer.join();
    const Failure failure = failure_of(*waiting);
    EXPECT(failure.failed && failure.code == ErrorCode::kPeerLost, failure.text);
    EXPECT(names(failure.text, 1), failure.text);
  }
}

/// abort() of either side, Ctrl-C, and what is taken back.
CASE(abort) {
  for (int round = 0; round < 12; ++round) {
    World world(2);
    world.run([&](int rank) {
      Communicator& group = world.at(rank);
      std::vector<char> data(1000000);
      if (rank == 1) {
        pause(round * 100);
        if (round % 3 == 0) return group.abort("enough");
        if (round % 3 == 2) {
          const auto operation = recv(group, 0, 1, data);
          group.cancel(operation);
          EXPECT(operation->done() && operation->error() == nullptr);
          return group.leave();
        }
        const auto operation = recv(group, 0, 9, data);
        int asked = 0;
        const std::string text = error_of([&] {
          group.wait(*operation, kTimeout, Deadline::max(), [&] {
            if (++asked == 2) throw Error(ErrorCode::kUnsupported, "Ctrl-C");
          });
        });
        EXPECT(text == "Ctrl-C", text);
        EXPECT(operation->done() && failure_of(*operation).code == ErrorCode::kPoisoned);
        return;
      }
      const Failure failure = failure_of_call(group, [&] { return send(group, 1, 0, data); });
      EXPECT(failure.failed, failure.text);
      EXPECT(failure.code == (round % 3 == 2 ? ErrorCode::kPeerLeft : ErrorCode::kPoisoned),
             failure.text);
      data.assign(data.size(), 1);  // nobody reads it any more
    });
  }
}

/// An operation that has ended, and whose callback runs, is neither taken back nor ended again.
CASE(cancelled_too_late) {
  World world(2);
  Communicator& group = world.at(0);
  std::vector<char> data(8), more(8);
  for (const bool sent : {true, false}) {
    int ended = 0;
    Pointer own;
    own = group.post(message(false, 1, 0, data.data(), data.size()),
                     [&](const PeerOperation&, const std::exception_ptr& error) {
                       ++ended;
                       EXPECT(error == nullptr);
                       if (own != nullptr) group.cancel(own);
                     });
    if (sent) {
      send(world.at(1), 0, 0, more);
      wait(group, own);
    } else {
      group.cancel(own);
    }
    EXPECT(ended == 1 && own->done());
    EXPECT(group.failure() == nullptr);
  }
  const auto next = recv(group, 1, 0, data);
  send(world.at(1), 0, 0, more);
  expect_good(group, next);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
