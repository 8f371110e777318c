// Memory of this process that was given back is kept for the next who asks: a large allocation that is
// new costs a page fault for every 4 KiB, which is more than to fill it.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace fastcomm {

/// Thread-safe. What lies idle is at most as much as was in use at a time, lately: the memory of the
/// largest use fades by a sixty-fourth of the difference with each request.
class HostCache {
 public:
  struct Block {
    char* memory = nullptr;  // aligned to kAlignment
    size_t bytes = 0;        // at least what was asked for
  };

  static constexpr size_t kAlignment = 64;

  /// The process's cache; never destroyed: tensors may outlive the static objects.
  static HostCache& instance();

  HostCache() = default;
  HostCache(const HostCache&) = delete;
  HostCache& operator=(const HostCache&) = delete;
  ~HostCache() { clear(); }

  /// Raises Error(kSystem) where the machine has no memory left.
  Block take(size_t bytes);
  void give(const Block& block);
  /// Frees what lies idle.
  void clear();
  size_t idle_bytes() const;

 private:
  void evict(size_t most);  // with the lock

  mutable std::mutex mutex_;
  std::vector<Block> idle_;  // the one that was given back first comes first
  size_t idle_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t most_used_ = 0;  // fades
};

}  // namespace fastcomm
