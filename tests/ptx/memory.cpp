// The allocations of this process that kernels may use.
//
// Looked up by the interpreter at every access, under a lock that ThreadSanitizer does not see: one
// that it saw would order threads which nothing on a device orders.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>

#include "machine.h"

namespace fastcomm::ptx {
namespace {

std::atomic_flag locked;

struct SpinLock {
  SpinLock() {
    while (locked.test_and_set(std::memory_order_acquire)) __builtin_ia32_pause();
  }
  ~SpinLock() { locked.clear(std::memory_order_release); }
};

std::atomic<uint64_t> epoch{1};  // of what has been removed

std::map<uint64_t, Range>& ranges() {
  static auto& all = *new std::map<uint64_t, Range>;
  return all;
}

}  // namespace

void add_range(const void* begin, uint64_t bytes, const void* on_host) {
  const auto first = reinterpret_cast<uint64_t>(begin);
  const SpinLock lock;
  ranges()[first] = {first, first + bytes, reinterpret_cast<uint64_t>(on_host) - first};
}

void remove_range(const void* begin) {
  const SpinLock lock;
  ranges().erase(reinterpret_cast<uint64_t>(begin));
  epoch.fetch_add(1, std::memory_order_release);
}

const Range* find_range(uint64_t address, uint64_t bytes) {
  // What this thread of the host has used last; `from` is where that was.
  static thread_local uint64_t seen = 0;
  static thread_local Range last[16];
  static thread_local unsigned from = 0;
  const uint64_t now = epoch.load(std::memory_order_acquire);
  if (seen != now) std::fill(std::begin(last), std::end(last), Range());
  seen = now;
  for (unsigned i = 0; i < 16; ++i) {
    const Range& each = last[(from + i) % 16];
    if (!each.holds(address, bytes)) continue;
    from = (from + i) % 16;
    return &each;
  }
  const SpinLock lock;
  auto found = ranges().upper_bound(address);
  if (found == ranges().begin() || !(--found)->second.holds(address, bytes)) return nullptr;
  from = (from + 15) % 16;
  last[from] = found->second;
  return &last[from];
}

}  // namespace fastcomm::ptx
