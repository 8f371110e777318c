// Ranks that are late: whom a timeout names, when it comes, and what it leaves as it is.
//
//   communicator_timeouts_test CASE SEED
#include "lagging_broadcast.h"
#include "messages.h"

namespace fastcomm::testing {
namespace {

/// The error comes on time and names who is late; `timeout` in ms.
CASE(late) {
  for (const int timeout : {100, 400}) {
    double worst = 0;
    for (int attempt = 0; attempt < 3; ++attempt) {  // the machine may be busy once or twice
      worst = 0;
      RankWorld world(3);
      Deadline starts[3] = {}, ends[3] = {};
      world.run([&](int rank) {
        if (rank == 1) return pause(timeout * 2000);
        std::vector<float> data(2000, 1.f);
        starts[rank] = Clock::now();
        auto operation =
            world.at(rank).run(sum_call(data.data(), data.size()), Milliseconds(timeout), nullptr);
        ends[rank] = Clock::now();
        const Failure failure = failure_of(*operation);
        EXPECT(failure.failed && failure.code == ErrorCode::kTimeout, failure.text);
        EXPECT(names(failure.text, 1), failure.text);
        EXPECT(data[0] == 1.f && data[1999] == 1.f);
      });
      for (int rank : {0, 2}) {
        // A rank that has started later may hear of the other's timeout before its own.
        const auto since = [&](Deadline start) {
          return std::chrono::duration<double>(ends[rank] - start).count();
        };
        const double first = since(std::min(starts[0], starts[2]));
        EXPECT(first >= timeout * 1e-3, first);
        worst = std::max(worst, since(starts[rank]));
      }
      if (worst < timeout * 1.1e-3) break;
    }
    EXPECT(worst < timeout * 1.1e-3, worst, " s instead of ", timeout, " ms");
  }
}

/// A peer gives the group up in every way that there is, and the code that a call gets that comes
/// after it.
struct Way {
  ErrorCode code;
  std::function<void(RankWorld&, int giver, Operation& pending)> give_up;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {ErrorCode::kPoisoned,
       [](RankWorld& world, int giver, Operation&) { world.at(giver).abort("it gave up"); }},
      {ErrorCode::kTimeout,
       [](RankWorld& world, int giver, Operation& pending) {
         world.at(giver).wait(pending, Deadline::max(), nullptr);
       }},
      {ErrorCode::kMismatch,
       [](RankWorld& world, int giver, Operation&) {
         std::vector<char> sent(8), wanted(4);
         send(world.at(2 - giver), giver, 3, sent);
         wait(world.at(giver), recv(world.at(giver), 2 - giver, 3, wanted));
       }},
      {ErrorCode::kPeerLost,
       [](RankWorld& world, int giver, Operation&) { world.bells().dead[giver] = true; }},
      {ErrorCode::kPeerLeft,
       [](RankWorld& world, int giver, Operation&) { world.at(giver).leave(); }},
  };
  return all;
}

/// Ranks 0 and 2 call and send what is enough for rank 1, then one of them gives up. Rank 1 comes
/// after that.
class LateWorld {
 public:
  static constexpr int kSize = 3, kLate = 1;

  LateWorld(const Way& way, Call call, int giver)
      : data_(kSize, std::vector<float>(call.count + 1, 1.f)), small_(8), call_(call) {
    const bool times_out = way.code == ErrorCode::kTimeout;
    std::shared_ptr<Operation> pending;
    for (const int peer : {0, 2}) {
      send(world_.at(peer), kLate, 1, small_);
      const auto started = world_.at(peer).start(
          call_of(peer), times_out && peer == giver ? Milliseconds(20) : kTimeout, nullptr);
      if (peer == giver) pending = started;
    }
    way.give_up(world_, giver, *pending);
  }

  Call call_of(int rank) {
    Call call = call_;
    if (call.kind != OpKind::kBarrier) call.input = call.output = data_[rank].data();
    return call;
  }
  Communicator& late() { return world_.at(kLate); }

 private:
  std::vector<std::vector<float>> data_;  // outlive the operations
  std::vector<char> small_;
  Call call_;
  RankWorld world_{kSize, 1, 0, ScratchLayout{}, Rings::kSome};
};

/// A call that starts after a peer has given the group up raises, whatever is there already of what
/// it needs.
CASE(too_late) {
  std::vector<Call> calls = {broadcast_call(nullptr, 5, 0), barrier_call()};
  for (const uint64_t count : {0, 2, 1000, 700000}) calls.push_back(sum_call(nullptr, count));
  int number = 0;
  for (const Call& call : calls) {
    for (const Way& way : ways()) {
      for (const bool async : {false, true}) {
        LateWorld world(way, call, number++ % 3 == 0 ? 0 : 2);
        Communicator& late = world.late();
        const auto operation = carry_out(late, world.call_of(LateWorld::kLate), async);
        const Failure failure = failure_of(*operation);
        EXPECT(failure.failed, "ended well: ", operation->describe(), ", way ", &way - &ways()[0]);
        EXPECT(!failure.failed || failure.code == way.code, failure.text);
      }
    }
  }
}

/// Sends and receives, too, but for a peer that left in order: what it has sent arrives.
CASE(too_late_message) {
  for (const Way& way : ways()) {
    for (const bool is_send : {false, true}) {
      for (const int peer : {0, 2}) {
        constexpr int kGiver = 2;
        std::vector<char> data(8);  // outlives the world
        LateWorld world(way, sum_call(nullptr, 2), kGiver);
        Communicator& late = world.late();
        const Failure failure = failure_of_call(
            late, [&] { return is_send ? send(late, peer, 1, data) : recv(late, peer, 1, data); });
        const bool good = way.code == ErrorCode::kPeerLeft && !(is_send && peer == kGiver);
        EXPECT(failure.failed || good, "ended well: ", is_send ? "send" : "recv", ", way ",
               &way - &ways()[0]);
        EXPECT(!failure.failed || !good, failure.text);
        EXPECT(!failure.failed || failure.code == way.code, failure.text);
      }
    }
  }
}

/// A rank that hears of a timeout from a peer is told who is late, however long the calls' names
/// are: a control block has no room for all of them.
CASE(told) {
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
CASE(held_up) {
  constexpr int kWaiting = 0, kLate = 1, kRoot = 2;
  RankWorld world(3);
  const LaggingBroadcast one(world, kRoot, kLate, /*step=*/3, Milliseconds(100));
  EXPECT(one.operations[kWaiting]->awaited_peer() == kRoot);
  EXPECT(one.operations[kRoot]->awaited_peer() == kLate);
  pause(120000);
  for (int rank : {kWaiting, kRoot}) {
    world.at(rank).examine();
    const Failure failure = failure_of(*one.operations[rank]);
    EXPECT(failure.failed && failure.code == ErrorCode::kTimeout, failure.text);
    EXPECT(failure.text.rfind(concat("[rank ", rank, " of 3, peer 1,"), 0) == 0, failure.text);
  }
}

/// A wait(timeout) that expires harms nothing: the operation goes on, even without help.
CASE(wait_timeout) {
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

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
