// Sends and receives of ranks as threads: values, orders, sizes, and how they fail.
//
//   point_to_point_test CASE SEED
#include <algorithm>
#include <deque>
#include <numeric>

#include "check.h"
#include "failure.h"
#include "rank_world.h"

namespace fastcomm::testing {
namespace {

constexpr auto kTimeout = Milliseconds(60000);
using Pointer = std::shared_ptr<PeerOperation>;

class World : public RankWorld {
 public:
  explicit World(int size) : RankWorld(size, 1, 0, ScratchLayout{}, Rings::kSome) {}
};

int operations(int fallback) {
  const char* wanted = std::getenv("FC_TEST_OPERATIONS");
  return wanted == nullptr ? fallback : std::atoi(wanted);
}

PeerCall message(bool is_send, int peer, int tag, char* data, uint64_t count,
                 DType dtype = DType::kUInt8) {
  return PeerCall{is_send, peer, tag, dtype, count, data};
}

Pointer send(Communicator& group, int to, int tag, std::vector<char>& data) {
  return group.post(message(true, to, tag, data.data(), data.size()), nullptr);
}

Pointer recv(Communicator& group, int from, int tag, std::vector<char>& data) {
  return group.post(message(false, from, tag, data.data(), data.size()), nullptr);
}

void wait(Communicator& group, const Pointer& operation, Milliseconds timeout = kTimeout) {
  group.wait(*operation, timeout, Deadline::max(), nullptr);
}

void expect_good(Communicator& group, const Pointer& operation) {
  wait(group, operation);
  const auto text = error_of([&] {
    if (operation->error() != nullptr) std::rethrow_exception(operation->error());
  });
  EXPECT(text.empty(), operation->describe(), ": ", text);
}

Failure failure_of(const PeerOperation& operation) {
  Failure failure;
  if (operation.error() == nullptr) return failure;
  failure.text = error_of([&] { std::rethrow_exception(operation.error()); }, &failure.code);
  failure.failed = true;
  return failure;
}

/// What a call ends with, whether it raises or its operation fails.
template <class Start>
Failure failure_of_call(Communicator& group, const Start& start, Milliseconds timeout = kTimeout) {
  Failure failure;
  failure.text = error_of(
      [&] {
        const Pointer operation = start();
        wait(group, operation, timeout);
        if (operation->error() != nullptr) std::rethrow_exception(operation->error());
      },
      &failure.code);
  failure.failed = !failure.text.empty();
  return failure;
}

std::vector<char> pattern(size_t bytes, uint64_t seed) {
  std::vector<char> data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<char>(state >> (i % 8 * 8));
  }
  return data;
}

/// Around the limits of what travels how.
constexpr size_t kSizes[] = {0,
                             1,
                             8,
                             63,
                             kEagerBytes - 1,
                             kEagerBytes,
                             kEagerBytes + 1,
                             kSlotBytes - 1,
                             kSlotBytes,
                             kSlotBytes + 1,
                             kSlotBytes* kRingSlots,
                             kSlotBytes* kRingSlots + 1,
                             kSlotBytes * 3 * kRingSlots + 5};

void test_sizes(uint64_t seed) {
  World world(2);
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    for (int round = 0; round < 4; ++round) {
      for (size_t bytes : kSizes) {
        auto wanted = pattern(bytes, seed + bytes + round);
        auto data = rank == 0 ? wanted : std::vector<char>(bytes, '\x11');
        expect_good(group, rank == 0 ? send(group, 1, 3, data) : recv(group, 0, 3, data));
        EXPECT(data == wanted, bytes, " bytes");
        // And back, both at once.
        auto got = std::vector<char>(bytes);
        const auto there = send(group, 1 - rank, 4, data);
        const auto back = recv(group, 1 - rank, 4, got);
        expect_good(group, round % 2 == 0 ? there : back);
        expect_good(group, round % 2 == 0 ? back : there);
        EXPECT(got == wanted, bytes, " bytes");
      }
    }
  });
}

/// Many messages between all pairs, tags in another order on each side, most started before any waits.
void test_random(uint64_t seed) {
  for (int round = 0; round < 3; ++round) {
    const int size = 2 + round;
    World world(size);
    const int count = operations(120);
    // messages[from][to]: by tag; a tag may come several times, in order.
    struct Planned {
      int tag;
      size_t bytes;
      uint64_t seed;
    };
    std::mt19937_64 bits(seed + round);
    std::vector<std::vector<std::vector<Planned>>> plan(
        size, std::vector<std::vector<Planned>>(size));
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        for (int i = 0; from != to && i < count; ++i) {
          const size_t bytes = bits() % 4 != 0 ? bits() % 100 : kSizes[bits() % std::size(kSizes)];
          plan[from][to].push_back({static_cast<int>(bits() % 7), bytes, bits()});
        }
      }
    }
    world.run([&](int rank) {
      std::mt19937_64 own(seed * 7 + rank);
      Communicator& group = world.at(rank);
      struct Running {
        Pointer operation;
        std::vector<char> data, wanted;
      };
      std::deque<Running> running;
      // All sends in their order, all receives by tag; mixed as chance will.
      struct Step {
        bool is_send;
        int peer;
        Planned what;
      };
      std::vector<std::deque<Step>> queues;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        queues.emplace_back();
        for (const auto& what : plan[rank][peer]) queues.back().push_back({true, peer, what});
        auto mine = plan[peer][rank];
        const int turn = static_cast<int>(own() % 7);
        std::stable_sort(mine.begin(), mine.end(), [&](const auto& a, const auto& b) {
          return (a.tag + turn) % 7 < (b.tag + turn) % 7;
        });
        queues.emplace_back();
        for (const auto& what : mine) queues.back().push_back({false, peer, what});
      }
      while (!queues.empty()) {
        const size_t chosen = own() % queues.size();
        if (queues[chosen].empty()) {
          queues.erase(queues.begin() + static_cast<long>(chosen));
          continue;
        }
        const Step step = queues[chosen].front();
        queues[chosen].pop_front();
        auto& entry = running.emplace_back();
        entry.wanted = pattern(step.what.bytes, step.what.seed);
        entry.data = step.is_send ? entry.wanted : std::vector<char>(step.what.bytes);
        entry.operation = step.is_send ? send(group, step.peer, step.what.tag, entry.data)
                                       : recv(group, step.peer, step.what.tag, entry.data);
        // Waiting for a send may need receives that the peer posts later: so for none here.
        if (own() % 16 == 0) group.progress();
      }
      while (!running.empty()) {
        const size_t chosen = own() % running.size();
        auto& entry = running[chosen];
        expect_good(group, entry.operation);
        EXPECT(entry.data == entry.wanted, "wrong data: ", entry.operation->describe());
        running.erase(running.begin() + static_cast<long>(chosen));
      }
    });
  }
}

/// More than a ring holds, before anybody receives; long ones among them; then backwards by tag.
void test_full(uint64_t seed) {
  World world(2);
  constexpr int kMany = 300;
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    std::vector<std::vector<char>> data(kMany);
    std::vector<Pointer> all(kMany);
    for (int i = 0; i < kMany; ++i) {
      const int tag = rank == 0 ? i : kMany - 1 - i;
      const size_t bytes = tag % 50 == 0 ? 100000 : 40;
      data[tag] = rank == 0 ? pattern(bytes, seed + tag) : std::vector<char>(bytes);
      if (rank == 1 && i == 0) pause(20000);
      all[tag] = rank == 0 ? send(group, 1, tag, data[tag]) : recv(group, 0, tag, data[tag]);
    }
    for (int i = 0; i < kMany; ++i) {
      const int tag = rank == 0 ? i : kMany - 1 - i;
      expect_good(group, all[tag]);
      EXPECT(data[tag] == pattern(data[tag].size(), seed + tag), "tag ", tag);
    }
  });
}

/// Nobody waits: the engines alone bring it to an end.
void test_background(uint64_t seed) {
  World world(3);
  std::atomic<int> finished{0};
  std::vector<std::vector<char>> from(3), to(3);
  std::vector<Pointer> all;
  for (int rank = 0; rank < 3; ++rank) {
    from[rank] = pattern(300000, seed + rank);
    to[rank].resize(300000);
    const auto note = [&](const PeerOperation&, const std::exception_ptr& error) {
      EXPECT(error == nullptr);
      ++finished;
    };
    const int next = (rank + 1) % 3, before = (rank + 2) % 3;
    all.push_back(world.at(rank).post(message(true, next, 0, from[rank].data(), 300000), note));
    all.push_back(world.at(rank).post(message(false, before, 0, to[rank].data(), 300000), note));
  }
  const auto start = std::chrono::steady_clock::now();
  while (finished < 6 && seconds_since(start) < 30) pause(100);
  EXPECT(finished == 6);
  for (int rank = 0; rank < 3; ++rank) EXPECT(to[rank] == from[(rank + 2) % 3]);
  // A short one is in the background on demand.
  std::vector<char> byte(1), sent(1, '\x7');
  std::atomic<bool> here{false};
  auto one = world.at(0).post(message(false, 1, 5, byte.data(), 1),
                              [&](const PeerOperation&, const std::exception_ptr&) { here = true; });
  world.at(0).in_background(one);
  send(world.at(1), 0, 5, sent);
  while (!here && seconds_since(start) < 30) pause(100);
  EXPECT(here && byte == sent);
}

void test_any_source(uint64_t seed) {
  constexpr int kSize = 4;
  World world(kSize);
  const int count = operations(100);
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    if (rank != 0) {
      for (int i = 0; i < count; ++i) {
        auto data = pattern(i % 10 == 0 ? 50000 : 16, seed + rank * 1000 + i);
        data[0] = static_cast<char>(rank), data[1] = static_cast<char>(i);
        expect_good(group, send(group, 0, i % 10 == 0 ? 1 : 2, data));
      }
      return;
    }
    std::vector<int> next(kSize, 0), next_long(kSize, 0);
    for (int i = 0; i < count * (kSize - 1); ++i) {
      const bool is_long = i % 10 == 0;
      std::vector<char> data(is_long ? 50000 : 16);
      const auto operation = recv(group, PeerCall::kAnyRank, is_long ? 1 : 2, data);
      expect_good(group, operation);
      const int from = operation->source();
      EXPECT(from == data[0] && from > 0, from);
      // A rank's messages of a tag come in their order.
      int& expected = is_long ? next_long[from] : next[from];
      const int number = is_long ? expected * 10 : expected + expected / 9 + 1;
      EXPECT(data[1] == static_cast<char>(number), static_cast<int>(data[1]), " ", number);
      ++expected;
    }
  });
}

/// Earlier receives come first, and ranks take turns.
void test_order(uint64_t) {
  World world(3);
  for (int rank = 0; rank < 3; ++rank) world.at(rank);
  std::vector<char> a(1), b(1), c(1), d(1), x{'x'}, y{'y'}, z{'z'}, w{'w'};
  Communicator& group = world.at(0);
  const auto any = recv(group, PeerCall::kAnyRank, 0, a);
  const auto one = recv(group, 1, 0, b);
  send(world.at(1), 0, 0, x);
  send(world.at(1), 0, 0, y);
  wait(group, any);
  wait(group, one);
  EXPECT(a == x && b == y && any->source() == 1 && one->source() == 1);
  send(world.at(1), 0, 0, x);
  send(world.at(1), 0, 0, y);
  send(world.at(2), 0, 0, z);
  send(world.at(2), 0, 0, w);
  std::vector<int> sources;
  for (auto* data : {&a, &b, &c, &d}) {
    const auto next = recv(group, PeerCall::kAnyRank, 0, *data);
    wait(group, next);
    sources.push_back(next->source());
  }
  EXPECT((sources == std::vector<int>{2, 1, 2, 1}), sources[0], sources[1], sources[2]);
}

/// Several threads of each rank, collectives among them.
void test_threads(uint64_t seed) {
  World world(2);
  const int count = operations(150);
  world.run([&](int rank) {
    Communicator& group = world.at(rank);
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&, tag] {
        for (int i = 0; i < count; ++i) {
          const size_t bytes = kSizes[(i + tag) % std::size(kSizes)];
          auto data = pattern(bytes, seed + tag + i);
          std::vector<char> got(bytes);
          const auto there = send(group, 1 - rank, tag, data);
          const auto back = recv(group, 1 - rank, tag, got);
          expect_good(group, back);
          expect_good(group, there);
          EXPECT(got == data);
        }
      });
    }
    for (int i = 0; i < count; ++i) {
      std::vector<float> sum(i % 3 == 0 ? 2000 : 3, 1.f);
      auto all = group.start(sum_call(sum.data(), sum.size()), kTimeout, nullptr);
      group.wait(*all, Deadline::max(), nullptr);
      EXPECT(sum.back() == 2.f);
    }
    for (auto& thread : threads) thread.join();
  });
}

/// Both sides learn of it, nothing is written, and later calls fail, too.
void test_mismatch(uint64_t seed) {
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
      PeerCall call{rank == 1, 1 - rank, 3, DType::kFloat32, data.size() - 1,
                    reinterpret_cast<char*>(data.data())};
      if (rank == 1 && round % 2 == 0) --call.count;
      if (rank == 1 && round % 2 == 1) call.dtype = DType::kInt32;
      if (rank == 1 && round % 6 == 5) call.count = 9000;
      if (rank == 1 && round % 6 == 5) data.resize(9000), call.data = reinterpret_cast<char*>(data.data());
      Failure failure = failure_of_call(group, [&] { return group.post(call, nullptr); });
      if (rank == 0) {
        EXPECT(data == before, "memory was touched");
        EXPECT(failure.text.find("recv(float32") != std::string::npos, failure.text);
        EXPECT(failure.text.find("send(") != std::string::npos, failure.text);
      } else if (!failure.failed) {  // short: gone when it was found
        std::vector<char> more(1);
        failure = failure_of_call(group, [&] { return recv(group, 0, 0, more); });
      }
      EXPECT(failure.failed && failure.code == ErrorCode::kMismatch, failure.text);
      std::vector<char> more(1);
      failure = failure_of_call(group, [&] { return send(group, 1 - rank, 0, more); });
      EXPECT(failure.failed && failure.code == ErrorCode::kMismatch, failure.text);
      const auto all = group.run(barrier_call(), kTimeout, nullptr);
      EXPECT(testing::failure_of(*all).code == ErrorCode::kMismatch);
    });
  }
}

void test_timeout(uint64_t) {
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
  // The other side learns of it: of the long one that nobody wanted, and in the next call.
  wait(world.at(1), sent.back());
  EXPECT(failure_of(*sent.back()).code == ErrorCode::kTimeout, failure_of(*sent.back()).text);
  const Failure later = failure_of_call(world.at(1), [&] { return send(world.at(1), 0, 1, data); });
  EXPECT(later.code == ErrorCode::kTimeout, later.text);
}

/// What was sent before the goodbye arrives; nothing else does.
void test_leave(uint64_t seed) {
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
      const Failure failure = failure_of_call(
          group, [&] { return recv(group, any ? PeerCall::kAnyRank : 1, 5, few); });
      EXPECT(failure.failed && failure.code == ErrorCode::kPeerLeft, failure.text);
      EXPECT(any || names(failure.text, 1), failure.text);
      EXPECT(failure_of_call(group, [&] { return send(group, 1, 5, few); }).code ==
             ErrorCode::kPeerLeft);
    });
  }
}

/// A death ends what waits, whatever it waits for; a full ring and a long message are no exceptions.
void test_lost(uint64_t) {
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
void test_abort(uint64_t) {
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

/// Two threads wait for one rank, the engine drives, and one gives up early: nobody sleeps on.
void test_hand_over(uint64_t seed) {
  World world(2);
  Communicator& group = world.at(0);
  for (int round = 0; round < operations(60); ++round) {
    std::vector<char> a(8), b(8);
    const auto early = recv(group, 1, 1, a);
    const auto late = recv(group, 1, 2, b);
    std::thread other([&] {
      ErrorCode code{};
      error_of([&] { group.wait(*early, kTimeout, Clock::now() + Milliseconds(1), nullptr); }, &code);
    });
    std::thread sender([&] {
      pause(seed * 131 + round * 37 % 2000);
      auto data = pattern(8, round);
      send(world.at(1), 0, 2, data);
    });
    const auto start = std::chrono::steady_clock::now();
    expect_good(group, late);
    EXPECT(b == pattern(8, round));
    EXPECT(seconds_since(start) < 5);
    other.join();
    sender.join();
    send(world.at(1), 0, 1, a);
    expect_good(group, early);
  }
}

}  // namespace

int run(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"sizes", test_sizes},
                    {"random", test_random},
                    {"full", test_full},
                    {"background", test_background},
                    {"any_source", test_any_source},
                    {"order", test_order},
                    {"threads", test_threads},
                    {"mismatch", test_mismatch},
                    {"timeout", test_timeout},
                    {"leave", test_leave},
                    {"lost", test_lost},
                    {"abort", test_abort},
                    {"hand_over", test_hand_over}});
}

}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run(argc, argv); }
