// Sends and receives of ranks as threads: values, orders, sizes, threads. How they fail is in
// point_to_point_failures_test.cpp.
//
//   point_to_point_test CASE SEED
#include <deque>

#include "messages.h"

namespace fastcomm::testing {
namespace {

CASE(sizes) {
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

/// Many messages between all pairs, tags in a different order on each side, most started before any
/// waits.
CASE(random) {
  for (int round = 0; round < 3; ++round) {
    const int size = 2 + round;
    World world(size);
    const int count = operations(120);
    // messages[from][to]: by tag; a tag may occur several times, in order.
    struct Planned {
      int tag;
      size_t bytes;
      uint64_t seed;
    };
    std::mt19937_64 bits(seed + round);
    std::vector<std::vector<std::vector<Planned>>> plan(size,
                                                        std::vector<std::vector<Planned>>(size));
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
      // All sends in their order, all receives by tag; mixed at random.
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
        // Waiting for a send may need receives that the peer posts later, so none is awaited here.
        if (own() % 16 == 0) group.poll();
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

/// More messages than a ring holds, long ones too, before anybody receives; then backwards by tag.
CASE(full) {
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

/// Nobody waits: the progress threads alone finish it.
CASE(background) {
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
  auto one =
      world.at(0).post(message(false, 1, 5, byte.data(), 1),
                       [&](const PeerOperation&, const std::exception_ptr&) { here = true; });
  world.at(0).in_background(one);
  send(world.at(1), 0, 5, sent);
  while (!here && seconds_since(start) < 30) pause(100);
  EXPECT(here && byte == sent);
}

CASE(any_source) {
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
      // A rank's messages with one tag arrive in order.
      int& expected = is_long ? next_long[from] : next[from];
      const int number = is_long ? expected * 10 : expected + expected / 9 + 1;
      EXPECT(data[1] == static_cast<char>(number), static_cast<int>(data[1]), " ", number);
      ++expected;
    }
  });
}

/// Earlier receives come first, and ranks take turns.
CASE(order) {
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
CASE(threads) {
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

/// Two threads wait for one rank, the progress thread drives, and one gives up early: nobody sleeps
/// on.
CASE(hand_over) {
  World world(2);
  Communicator& group = world.at(0);
  for (int round = 0; round < operations(60); ++round) {
    std::vector<char> a(8), b(8);
    const auto early = recv(group, 1, 1, a);
    const auto late = recv(group, 1, 2, b);
    std::thread other([&] {
      ErrorCode code{};
      error_of([&] { group.wait(*early, kTimeout, Clock::now() + Milliseconds(1), nullptr); },
               &code);
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

/// A rank gets its messages by another way from some moment on: those that were sent before are
/// there, and none comes later.
CASE(elsewhere) {
  for (int round = 0; round < operations(40); ++round) {
    World world(2);
    // More than a ring holds, short and long.
    constexpr int kCount = 100;
    const auto content = [&](int number) { return pattern(number % 10 == 9 ? 9000 : 40, number); };
    std::atomic<int> by_ring{0};
    std::thread sender([&] {
      std::deque<std::vector<char>> data;
      std::vector<Pointer> sent;
      for (int number = 0; number < kCount; ++number) {
        data.push_back(content(number));
        PeerCall call = message(true, 0, 5, data.back().data(), data.back().size());
        call.two_ways = true;
        sent.push_back(world.at(1).post(call, nullptr));
        if (sent.back() == nullptr) break;
        by_ring.store(number + 1);
        if (number % 7 == round % 7) pause(seed * 17 + round);
      }
      if (sent.back() == nullptr) sent.pop_back();
      for (const Pointer& each : sent) expect_good(world.at(1), each);
    });
    std::deque<std::vector<char>> got;
    std::vector<Pointer> received;
    const auto post = [&] {
      got.push_back(std::vector<char>(content(static_cast<int>(got.size())).size()));
      received.push_back(recv(world.at(0), 1, 5, got.back()));
    };
    for (int early = 0; early < round % 12; ++early) post();
    pause(seed * 31 + round * 7);
    while (!world.at(0).take_elsewhere()) std::this_thread::yield();
    const int all = by_ring.load();  // or one fewer than were posted: it stores afterwards
    while (static_cast<int>(got.size()) < kCount) post();
    int taken_back = 0;
    for (const Pointer& each : received) taken_back += world.at(0).take_back(each) ? 1 : 0;
    const int here = kCount - taken_back;
    for (int number = 0; number < here; ++number) {
      expect_good(world.at(0), received[number]);
      EXPECT(got[number] == content(number), "message ", number);
    }
    sender.join();
    EXPECT(here == by_ring.load() && here >= all, here, " of ", by_ring.load());
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
