// Keeps returned memory of this process for the next request: a large new allocation costs a page
// fault per 4 KiB, which takes longer than filling it.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace fastcomm {

/// Thread-safe. Idle memory is at most what was recently in use at one time: that remembered
/// maximum fades by a sixty-fourth of the difference with each request.
class HostCache {
 public:
  struct Block {
    char* memory = nullptr;  // aligned to kAlignment
    size_t bytes = 0;        // at least as requested
  };

  static constexpr size_t kAlignment = 64;

  /// The process's cache; never destroyed, because tensors may outlive static objects.
  static HostCache& instance();

  HostCache() = default;
  HostCache(const HostCache&) = delete;
  HostCache& operator=(const HostCache&) = delete;
  ~HostCache() { clear(); }

  /// Raises Error(kSystem) if the machine has no memory left.
  Block take(size_t bytes);
  void give(const Block& block);
  /// Frees idle memory.
  void clear();
  size_t idle_bytes() const;

 private:
  void evict(size_t most);  // with the lock

  mutable std::mutex mutex_;
  std::vector<Block> idle_;  // ordered by time of return, oldest first
  size_t idle_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t most_used_ = 0;  // fades
};

}  // namespace fastcomm
