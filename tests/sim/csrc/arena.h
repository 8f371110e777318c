// The devices' memory: mapped twice, once where nobody may touch it, which is the address that torch sees, and
// once for what runs on the devices. So whoever takes an address on a device for one on the host is caught.
#pragma once

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace sim {

/// Thread-safe. Blocks are powers of two, and are used again.
class Arena {
 public:
  static Arena& get() {
    static auto* all = new Arena;  // outlives all tensors
    return *all;
  }

  /// nullptr: there is no room.
  void* allocate(size_t bytes) {
    size_t size = kSmallest;
    while (size < bytes && size < kSize) size *= 2;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_[size];
    if (free.empty()) {
      if (size > kSize - used_) return nullptr;
      free.push_back(shown_ + used_);
      used_ += size;
    }
    char* const block = free.back();
    free.pop_back();
    sizes_[block] = size;
    return block;
  }

  static void release(void* memory) {
    auto& arena = get();
    const std::lock_guard<std::mutex> lock(arena.mutex_);
    auto* const block = static_cast<char*>(memory);
    const size_t size = arena.sizes_.at(block);
    if (size >= kLarge) madvise(arena.on_host(memory), size, MADV_REMOVE);
    arena.free_[size].push_back(block);
  }

  /// Where the host reaches what lies at this address on a device.
  void* on_host(const void* address) const {
    if (address == nullptr) return nullptr;
    return memory_ + (static_cast<const char*>(address) - shown_);
  }

 private:
  static constexpr size_t kSmallest = 512;
  static constexpr size_t kLarge = size_t{1} << 20;
  static constexpr size_t kSize = size_t{1}
                                  << 35;  // addresses; memory is taken where it is touched

  Arena() {
    const int file = memfd_create("sim", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kSize) == 0, "sim: no memory for the devices");
    const auto map = [file](int access) {
      void* at = mmap(nullptr, kSize, access, MAP_SHARED | MAP_NORESERVE, file, 0);
      TORCH_CHECK(at != MAP_FAILED, "sim: no room for the devices' memory");
      return static_cast<char*>(at);
    };
    shown_ = map(PROT_NONE);
    memory_ = map(PROT_READ | PROT_WRITE);
    close(file);
  }

  char* shown_ = nullptr;
  char* memory_ = nullptr;
  std::mutex mutex_;
  size_t used_ = 0;
  std::map<size_t, std::vector<char*>> free_;
  std::unordered_map<char*, size_t> sizes_;
};

}  // namespace sim
