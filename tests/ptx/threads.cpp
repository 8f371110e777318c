// The threads of a grid are threads of the host, and barriers are the host's: ThreadSanitizer sees
// what orders them, and nothing else does.
#include <semaphore.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "machine.h"

namespace fastcomm::ptx {
namespace {

// ThreadSanitizer needs megabytes for a thread, so a thread of the host runs several of a block.
constexpr uint32_t kShares = 16;
constexpr uint32_t kMostBlocks = 4;  // at once; larger grids synchronise nothing

/// Neighbours are in different shares, and so are threads whose numbers differ by a multiple of 16
/// below 256: those that exchange something.
uint32_t share_of(uint32_t thread) { return (thread ^ thread / kShares) % kShares; }

/// The barrier of a block's threads; those that have ended are not waited for.
class Barrier {
 public:
  explicit Barrier(uint32_t shares) : left_(shares) {}

  bool wait(bool vote) {
    std::unique_lock<std::mutex> lock(mutex_);
    all_ = all_ && vote;
    ++arrived_;
    if (arrived_ == left_) return open(), result_;
    const uint64_t round = round_;
    everybody_.wait(lock, [&] { return round_ != round; });
    return result_;
  }
  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --left_;
    if (arrived_ != 0 && arrived_ == left_) open();
  }

 private:
  void open() {
    arrived_ = 0;
    ++round_;
    result_ = all_;
    all_ = true;
    everybody_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable everybody_;
  uint32_t left_;
  uint32_t arrived_ = 0;
  uint64_t round_ = 0;
  bool all_ = true;
  bool result_ = true;
};

struct RunningBlock {
  RunningBlock(const Launch& launch, uint32_t index)
      : block(launch, index), shares(std::min(launch.threads, kShares)), barrier(shares) {}

  Block block;
  const uint32_t shares;
  Barrier barrier;
};

/// Runs the threads of one share until they have ended.
void run_share(RunningBlock& running, uint32_t share) {
  std::deque<Thread> all;
  std::vector<Thread*> ready;
  for (uint32_t t = 0; t < running.block.launch->threads; ++t) {
    if (share_of(t) == share) ready.push_back(&all.emplace_back(running.block, t));
  }
  std::vector<Thread*> waiting;
  for (bool vote = true;;) {
    for (size_t i = 0; i < ready.size();) {
      const Pause pause = ready[i]->run(~0ull);
      if (pause == Pause::kLooked) {
        std::this_thread::yield();
        ++i;
        continue;
      }
      if (pause == Pause::kBarrier) {
        vote = vote && ready[i]->vote;
        waiting.push_back(ready[i]);
      }
      ready[i] = ready.back();
      ready.pop_back();
    }
    if (!ready.empty()) continue;
    if (waiting.empty()) return running.barrier.leave();
    const bool result = running.barrier.wait(vote);
    for (Thread* each : waiting) each->pass_barrier(result);
    ready.swap(waiting);
    vote = true;
  }
}

/// A semaphore orders whoever waits after whoever posted, and nothing else.
class Semaphore {
 public:
  Semaphore() { sem_init(&semaphore_, 0, 0); }
  void post() { sem_post(&semaphore_); }
  void wait() {
    while (sem_wait(&semaphore_) != 0) continue;
  }

 private:
  sem_t semaphore_;
};

/// The threads that a stream keeps from launch to launch.
class Workers {
 public:
  ~Workers() {
    for (Worker& each : workers_) each.start.post();  // with nothing to do: the end
    for (Worker& each : workers_) each.thread.join();
  }

  void run(std::deque<RunningBlock>& blocks) {
    while (workers_.size() < blocks.size() * blocks[0].shares) {
      Worker& made = workers_.emplace_back();
      made.thread = std::thread([this, &made] { work_off(made); });
    }
    size_t next = 0;
    for (RunningBlock& block : blocks) {
      for (uint32_t share = 0; share < block.shares; ++share) {
        Worker& worker = workers_[next++];
        worker.work = [&block, share] { run_share(block, share); };
        worker.start.post();
      }
    }
    for (; next > 0; --next) done_.wait();
  }

 private:
  struct Worker {
    std::thread thread;
    Semaphore start;
    std::function<void()> work;
  };

  void work_off(Worker& self) {
    for (;;) {
      self.start.wait();
      if (!self.work) return;
      self.work();
      self.work = nullptr;
      done_.post();
    }
  }

  std::deque<Worker> workers_;
  Semaphore done_;
};

}  // namespace

void run_grid(const Launch& launch) {
  static thread_local Workers workers;
  for (uint32_t first = 0; first < launch.blocks; first += kMostBlocks) {
    std::deque<RunningBlock> blocks;
    for (uint32_t b = first; b < std::min(first + kMostBlocks, launch.blocks); ++b) {
      blocks.emplace_back(launch, b);
    }
    workers.run(blocks);
  }
}

}  // namespace fastcomm::ptx
