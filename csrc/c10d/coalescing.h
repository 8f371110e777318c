// What threads issue between startCoalescing and endCoalescing.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace fastcomm {

/// Thread-safe: each thread has a block of its own.
class Coalescing {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

  /// The calling thread's block starts. What an exception has left open ends here.
  void begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    issued_[std::this_thread::get_id()].clear();
    threads_ = static_cast<int>(issued_.size());
  }
  /// Whether the calling thread is in one.
  bool open() const {
    if (threads_ == 0) return false;  // this thread's own change is seen
    const std::lock_guard<std::mutex> lock(mutex_);
    return issued_.count(std::this_thread::get_id()) != 0;
  }
  /// Notes the work, which end() returns too, if the calling thread is in a block.
  WorkPtr noted(WorkPtr work) {
    if (threads_ == 0 || work == nullptr) return work;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto open = issued_.find(std::this_thread::get_id());
    if (open != issued_.end()) open->second.push_back(work);
    return work;
  }
  /// What the calling thread has issued since begin().
  std::vector<WorkPtr> end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto issued = issued_.extract(std::this_thread::get_id());
    threads_ = static_cast<int>(issued_.size());
    return issued.empty() ? std::vector<WorkPtr>{} : std::move(issued.mapped());
  }

 private:
  std::atomic<int> threads_{0};  // that are in a block
  mutable std::mutex mutex_;
  std::map<std::thread::id, std::vector<WorkPtr>> issued_;
};

}  // namespace fastcomm
