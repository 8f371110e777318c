// Memory of this process that was given back is kept for the next request: a large new allocation
// costs a page fault for every 4 KiB, which is more than filling it costs.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace fastcomm {

/// Thread-safe. At most as much lies idle as was recently in use at one time: the remembered maximum
/// fades by a sixty-fourth of the difference with each request.
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
  std::vector<Block> idle_;  // the one given back first comes first
  size_t idle_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t most_used_ = 0;  // fades
};

}  // namespace fastcomm
