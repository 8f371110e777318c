// Meetings of ranks as threads: in which order they start a stock engine, and when they do not. What
// happens once it is at work is in communicator_engine_test.cpp.
//
//   communicator_meeting_test CASE SEED
#include <condition_variable>
#include <deque>

#include "meetings.h"

namespace fastcomm::testing {
namespace {

/// Joins the ranks' operations in the order in which each rank starts them, as Gloo does, and ends
/// what all have started on a thread of its own.
class JoiningEngine {
 public:
  explicit JoiningEngine(int size) : started_(size), thread_([this] { run(); }) {}
  ~JoiningEngine() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void start(int rank, std::shared_ptr<const Operation> operation, std::function<void()> on_end) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      started_[rank].push_back({std::move(operation), std::move(on_end)});
    }
    changed_.notify_all();
  }

 private:
  struct Started {
    std::shared_ptr<const Operation> operation;
    std::function<void()> on_end;
  };

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto all_there = [&] {
      return std::all_of(started_.begin(), started_.end(), [](auto& q) { return !q.empty(); });
    };
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || all_there(); });
      if (!all_there()) return;
      std::vector<Started> joined;
      for (auto& queue : started_) {
        joined.push_back(std::move(queue.front()));
        queue.pop_front();
      }
      lock.unlock();
      const uint64_t first = joined[0].operation->header().sequence;
      for (const Started& each : joined) {
        const uint64_t sequence = each.operation->header().sequence;
        EXPECT(sequence == first, "the engine joined operations ", first, " and ", sequence);
        each.on_end();
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Started>> started_;  // by rank
  bool stop_ = false;
  std::thread thread_;
};

/// Whichever threads drive, every rank starts the engine's operations in the order in which they
/// were issued, one at a time, among native ones. The vector of each rank has no lock: what is not
/// one at a time is a race.
void test_order(uint64_t seed) {
  constexpr int kOperations = 60, kHelpers = 2;
  for (int size : {2, 3}) {
    RankWorld world(size);
    JoiningEngine stock(size);
    std::vector<std::vector<uint64_t>> order(size);
    world.run([&](int rank) {
      std::mt19937_64 shared(seed * 7 + size), own(seed * 100 + rank);
      Communicator& group = world.at(rank);
      std::atomic<bool> done{false};
      std::atomic<int> ended{0};
      std::vector<std::thread> helpers;
      for (int i = 0; i < kHelpers; ++i) {
        helpers.emplace_back([&] {
          while (!done.load()) {
            group.progress();
            std::this_thread::yield();
          }
        });
      }
      std::vector<float> data(300, 1.f);
      std::vector<uint64_t> wanted;
      std::vector<std::shared_ptr<Operation>> operations;
      for (int i = 0; i < kOperations; ++i) {
        const bool native = shared() % 4 == 0, async = own() % 3 != 0;
        if (native) {
          operations.push_back(group.start(sum_call(data.data(), data.size()), kTimeout, nullptr));
          continue;
        }
        const uint64_t slow = own() % 4 == 0 ? own() % 200 : 0;
        operations.push_back(group.meet(
            meeting_call(), kTimeout, async, nullptr,
            [&, rank, slow](const Operation& operation, const std::exception_ptr& error) {
              EXPECT(error == nullptr);
              pause(slow);
              order[rank].push_back(operation.header().sequence);
              auto held = operation.shared_from_this();
              stock.start(rank, held, [&group, &ended, held] {
                group.close(*held);
                ++ended;
              });
            },
            [](const Operation& operation, const std::exception_ptr&) {
              EXPECT(false, operation.describe(), " was lost");
            }));
        wanted.push_back(operations.back()->header().sequence);
      }
      for (auto& operation : operations) {
        group.wait(*operation, Deadline::max(), nullptr);
        EXPECT(operation->error() == nullptr);
      }
      while (ended < static_cast<int>(wanted.size())) pause(100);
      done.store(true);
      for (std::thread& helper : helpers) helper.join();
      EXPECT(order[rank] == wanted, "rank ", rank, " started the engine in another order");
      EXPECT(!group.pending() && !group.engine_at_work());
    });
  }
}

/// A meeting and a native call, or two meetings that differ, are told apart; no engine starts.
void test_mismatch(uint64_t) {
  for (const bool native : {true, false}) {
    RankWorld world(3);
    std::deque<Told> told(3);
    world.run([&](int rank) {
      float value = 1.f;
      std::shared_ptr<Operation> operation;
      if (rank == 1 && native) {
        operation = world.at(rank).run(sum_call(&value, 1), kTimeout, nullptr);
      } else {
        operation = meet(world.at(rank), told[rank], meeting_call(rank == 1 ? 11 : 10));
        EXPECT(told[rank].met == 1 && told[rank].lost == 0);
      }
      EXPECT(failure_of(*operation).code == ErrorCode::kMismatch, failure_of(*operation).text);
      EXPECT(!world.at(rank).engine_at_work());
    });
  }
}

/// A rank that is late, dead or gone before the meeting: as for native operations, no engine starts.
void test_absent(uint64_t) {
  {
    RankWorld world(3);
    Told told[2];
    const auto start = Clock::now();
    world.run([&](int rank) {
      if (rank == 2) return pause(300000);
      meet(world.at(rank), told[rank], meeting_call(), Milliseconds(100));
    });
    for (const Told& each : told) {
      EXPECT(each.met == 1 && each.lost == 0 && each.why.code == ErrorCode::kTimeout);
      EXPECT(names(each.why.text, 2), each.why.text);
    }
    EXPECT(seconds_since(start) < 5);
  }
  for (const bool dies : {true, false}) {
    RankWorld world(3);
    Told told[2];
    if (dies) {
      world.bells().dead[2].store(true);
    } else {
      world.at(2).leave();
    }
    world.run([&](int rank) {
      if (rank == 2) return;
      meet(world.at(rank), told[rank]);
      EXPECT(!world.at(rank).engine_at_work());
    });
    for (const Told& each : told) {
      EXPECT(each.met == 1 && each.lost == 0, each.met, each.lost);
      EXPECT(each.why.code == (dies ? ErrorCode::kPeerLost : ErrorCode::kPeerLeft), each.why.text);
      EXPECT(names(each.why.text, 2), each.why.text);
    }
  }
}

/// A group that is given up at any moment of a meeting: every rank's callbacks say so once, and what
/// closes what it was told of leaves nothing open.
void test_given_up(uint64_t seed) {
  for (int round = 0; round < 12; ++round) {  // half a second each where the engine is left alone
    RankWorld world(2);
    std::atomic<bool> go{false};
    Told told[2];
    world.run([&](int rank) {
      std::mt19937_64 own(seed * 1000 + round * 2 + rank);
      Communicator& group = world.at(rank);
      const uint64_t moment = own() % 60;
      std::thread quitter([&, moment] {
        while (!go.load()) std::this_thread::yield();
        if (rank == round % 2) {
          pause(moment);
          group.abort("at some moment");
        }
        group.examine();
      });
      go.store(true);
      const auto operation = meet(group, told[rank], meeting_call(), kTimeout, own() % 2 == 0);
      const auto start = Clock::now();
      while ((told[rank].met == 0 || !told[rank].failed) && seconds_since(start) < 10) {
        group.progress();
        group.examine();
      }
      quitter.join();
      group.close(*operation);
      EXPECT(told[rank].met == 1 && told[rank].lost <= 1);
      EXPECT(told[rank].failed, "rank ", rank, " was never told");
      EXPECT(!group.engine_at_work() && !group.pending());
    });
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"order", test_order},
                    {"mismatch", test_mismatch},
                    {"absent", test_absent},
                    {"given_up", test_given_up}});
}
