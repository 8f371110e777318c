// The threads of a grid take turns in the thread that launched it, in an order that follows from a
// seed: each executes a random number of operations, and all blocks are under way at once.
#include <algorithm>
#include <chrono>
#include <deque>
#include <list>
#include <random>
#include <thread>

#include "machine.h"

namespace fastcomm::ptx {
namespace {

constexpr uint64_t kLongestTurn = 2000;  // operations
/// Sleep of a grid all of whose threads wait for others: with more ranks than processors, turns of
/// those who only look again take most of their time.
constexpr std::chrono::microseconds kNothingNew{50};

struct Running {
  explicit Running(const Launch& launch, uint32_t index) : block(launch, index) {
    for (uint32_t t = 0; t < launch.threads; ++t) threads.emplace_back(block, t);
  }

  Block block;
  std::deque<Thread> threads;
  std::vector<Thread*> waiting;  // at the barrier
  uint32_t ended = 0;
};

}  // namespace

void run_grid(const Launch& launch) {
  std::mt19937_64 random(launch.seed);
  std::deque<Running> blocks;
  std::vector<std::pair<Running*, Thread*>> ready;
  for (uint32_t b = 0; b < launch.blocks; ++b) {
    Running& running = blocks.emplace_back(launch, b);
    for (Thread& thread : running.threads) ready.emplace_back(&running, &thread);
  }
  size_t looked = 0;  // in a row, without anything else done
  while (!ready.empty()) {
    const size_t turn = random() % ready.size();
    const auto [running, thread] = ready[turn];
    const Pause pause = thread->run(1 + random() % kLongestTurn);
    if (pause == Pause::kSpent || pause == Pause::kLooked) {
      looked = pause == Pause::kLooked ? looked + 1 : 0;
      if (looked > ready.size()) std::this_thread::sleep_for(kNothingNew);
      continue;
    }
    looked = 0;
    std::swap(ready[turn], ready.back());
    ready.pop_back();
    if (pause == Pause::kBarrier) running->waiting.push_back(thread);
    if (pause == Pause::kEnded) ++running->ended;
    if (running->waiting.empty() || running->waiting.size() + running->ended != launch.threads) {
      continue;
    }
    const bool all = std::all_of(running->waiting.begin(), running->waiting.end(),
                                 [](const Thread* each) { return each->vote; });
    for (Thread* each : running->waiting) {
      each->pass_barrier(all);
      ready.emplace_back(running, each);
    }
    running->waiting.clear();
  }
}

}  // namespace fastcomm::ptx
