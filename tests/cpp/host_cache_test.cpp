// The cache of large blocks: what comes back is reused, what is no longer needed goes.
//
//   host_cache_test CASE SEED
#include "core/host_cache.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kMiB = 1 << 20;

CASE(reuse) {
  HostCache cache;
  const HostCache::Block first = cache.take(3 * kMiB + 1);
  EXPECT(reinterpret_cast<uintptr_t>(first.memory) % HostCache::kAlignment == 0);
  EXPECT(first.bytes > 3 * kMiB && cache.idle_bytes() == 0);
  cache.give(first);
  EXPECT(cache.idle_bytes() == first.bytes);
  const HostCache::Block other = cache.take(100);  // far too small for that block
  EXPECT(other.memory != first.memory);
  const HostCache::Block again = cache.take(2 * kMiB);
  EXPECT(again.memory == first.memory && again.bytes == first.bytes);
  cache.give(again);
  cache.give(other);
  cache.clear();
  EXPECT(cache.idle_bytes() == 0);
}

/// The best fit, not the first; and no more idle than was in use at a time.
CASE(limits) {
  HostCache cache;
  const HostCache::Block large = cache.take(8 * kMiB), small = cache.take(4 * kMiB);
  cache.give(large);
  cache.give(small);
  const HostCache::Block best = cache.take(3 * kMiB);
  EXPECT(best.memory == small.memory);
  cache.give(best);
  for (int round = 0; round < 100; ++round) {  // blocks of ever different sizes
    cache.give(cache.take((20 + round) * 5 * kMiB / 8));
    EXPECT(cache.idle_bytes() < 2 * 80 * kMiB, cache.idle_bytes());
  }
  for (int round = 0; round < 2000; ++round) cache.give(cache.take(64 * 1024));
  EXPECT(cache.idle_bytes() < kMiB, cache.idle_bytes(), " bytes are idle that nobody asks for");
}

/// Nobody gets a block that somebody else has.
CASE(threads) {
  HostCache cache;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(seed * 10 + thread);
      for (int round = 0; round < 200; ++round) {
        const size_t bytes = 1 + random() % (256 * 1024);
        const HostCache::Block block = cache.take(bytes);
        std::memset(block.memory, thread, bytes);
        if (round % 8 == 0) std::this_thread::yield();
        EXPECT(block.memory[0] == thread && block.memory[bytes - 1] == thread);
        cache.give(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// A child that is made while a thread uses the cache does not wait for that thread.
CASE(fork) {
  HostCache& cache = HostCache::instance();
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) cache.give(cache.take(64 * 1024));
  });
  for (int turn = 0; turn < 300; ++turn) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      cache.give(cache.take(64 * 1024));
      _exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7, "turn ", turn, ": status ", status);
    if (!WIFEXITED(status)) break;
  }
  over = true;
  other.join();
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
