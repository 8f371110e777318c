// Calls that threads issue between startCoalescing and endCoalescing.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "c10d/engines/engine.h"

namespace fastcomm {

/// Thread-safe: each thread has a block of its own.
class Coalescing {
 public:
  struct Block {
    std::vector<WorkPtr> works;                     // of engines without blocks
    std::vector<std::pair<Engine*, bool>> engines;  // true: the block is the engine's own
  };

  /// Starts the calling thread's block. Ends one that an exception has left open.
  void begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[std::this_thread::get_id()] = Block{};
    threads_ = static_cast<int>(blocks_.size());
  }
  /// True if the calling thread is in a block.
  bool open() const {
    if (threads_ == 0) return false;  // this thread's own change is seen
    const std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.count(std::this_thread::get_id()) != 0;
  }
  /// Submits a call of the calling thread's block to an engine, which has begun a block of its own
  /// if it can.
  WorkPtr submit(Engine& engine, const Request& request) {
    Block& block = own();
    const auto is_engine = [&](const auto& known) { return known.first == &engine; };
    auto found = std::find_if(block.engines.begin(), block.engines.end(), is_engine);
    if (found == block.engines.end()) {
      block.engines.emplace_back(&engine, engine.begin_block());
      found = std::prev(block.engines.end());
    }
    WorkPtr work = engine.submit(request);
    if (!found->second && work != nullptr) block.works.push_back(work);
    return work;
  }
  /// The works of all calls of this thread since begin().
  std::vector<WorkPtr> end() {
    Block block;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto issued = blocks_.extract(std::this_thread::get_id());
      threads_ = static_cast<int>(blocks_.size());
      if (!issued.empty()) block = std::move(issued.mapped());
    }
    for (const auto& [engine, is_own] : block.engines) {
      if (!is_own) continue;
      if (WorkPtr work = engine->end_block()) block.works.push_back(std::move(work));
    }
    return std::move(block.works);
  }

 private:
  /// Used by its thread alone; others do not move it.
  Block& own() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.at(std::this_thread::get_id());
  }

  std::atomic<int> threads_{0};  // that are in a block
  mutable std::mutex mutex_;
  std::map<std::thread::id, Block> blocks_;
};

}  // namespace fastcomm
