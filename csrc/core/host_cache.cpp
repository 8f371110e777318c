#include "core/host_cache.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "core/error.h"

namespace fastcomm {
namespace {

constexpr size_t kGranule = 64 * 1024;  // blocks are multiples of it, so that they can be reused
constexpr size_t kWaste = 4;            // a block serves a request of at least 1 / kWaste of it
constexpr size_t kHugePage = 2 << 20;  // of most processors; blocks of two or more are made of them

/// `bytes` rounded up to the unit of a block of this size.
size_t rounded(size_t bytes) {
  const size_t unit = bytes >= 2 * kHugePage ? kHugePage : kGranule;
  return (bytes + unit - 1) / unit * unit;
}

/// nullptr if no memory is left.
char* allocate(size_t bytes) {
  const bool huge = bytes >= 2 * kHugePage;
  void* memory = std::aligned_alloc(huge ? kHugePage : HostCache::kAlignment, bytes);
  // Only a hint: with large pages the first touch costs one fault instead of 512, and no pass over
  // the block waits for address translation.
  if (memory != nullptr && huge) static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
  return static_cast<char*>(memory);
}

}  // namespace

HostCache& HostCache::instance() {
  static auto* const shared = [] {
    auto* const made = new HostCache;
    // A child of fork() keeps the cache, which another thread may be using at the time of the fork.
    const auto unlock = [] { instance().mutex_.unlock(); };
    pthread_atfork([] { instance().mutex_.lock(); }, unlock, unlock);
    return made;
  }();
  return *shared;
}

HostCache::Block HostCache::take(size_t bytes) {
  Block found;
  const size_t wanted = rounded(bytes);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t best = idle_.size();
    for (size_t i = 0; i < idle_.size(); ++i) {
      if (idle_[i].bytes < wanted || idle_[i].bytes / kWaste > wanted) continue;
      if (best == idle_.size() || idle_[i].bytes < idle_[best].bytes) best = i;
    }
    if (best != idle_.size()) {
      found = idle_[best];
      idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(best));
      idle_bytes_ -= found.bytes;
    }
  }
  if (found.memory == nullptr) {
    found = {allocate(wanted), wanted};
    if (found.memory == nullptr) {
      clear();
      found.memory = allocate(wanted);
    }
    if (found.memory == nullptr) {
      throw Error(ErrorCode::kSystem, concat("no memory left for ", wanted, " bytes"));
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ += found.bytes;
  constexpr size_t kFading = 64;
  if (used_bytes_ < most_used_) most_used_ -= (most_used_ - used_bytes_ + kFading - 1) / kFading;
  if (used_bytes_ > most_used_) most_used_ = used_bytes_;
  return found;
}

void HostCache::give(const Block& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ -= block.bytes;
  try {
    idle_.push_back(block);
  } catch (const std::bad_alloc&) {  // give() must not fail
    std::free(block.memory);
    return;
  }
  idle_bytes_ += block.bytes;
  evict(most_used_);
}

void HostCache::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  evict(0);
}

size_t HostCache::idle_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return idle_bytes_;
}

void HostCache::evict(size_t most) {
  size_t gone = 0;
  while (gone < idle_.size() && idle_bytes_ > most) {
    idle_bytes_ -= idle_[gone].bytes;
    std::free(idle_[gone].memory);
    ++gone;
  }
  idle_.erase(idle_.begin(), idle_.begin() + static_cast<std::ptrdiff_t>(gone));
}

}  // namespace fastcomm
