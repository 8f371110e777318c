// Memory of devices in a file that other processes can map: a memfd, which has no name and is gone
// with the last process that holds it, however that ends.
//
// The file is sparse and as large as the devices' memory may ever get. After it come addresses for
// what other processes have exported. Hidden memory is mapped twice: at the address that programs
// see, where any access faults, and for what runs on the devices; so a program that uses a device's
// address on the host is caught. Both mappings have one layout, so on_host() takes no lock.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "shim/memory_source.h"

namespace fastcomm::shim {

/// Thread-safe. Blocks are powers of two, and are reused.
class Arena {
 public:
  struct Options {
    size_t bytes = size_t{1} << 32;    // addresses; memory is taken where it is touched
    size_t imports = size_t{1} << 32;  // addresses for what others have exported
    bool hidden = false;
  };

  /// The process's. The first call's options hold. Never destroyed: workers may still run at exit.
  static Arena& get() { return get(Options()); }
  static Arena& get(const Options& first) {
    static Arena& all = *new Arena(first);
    return all;
  }

  /// For Runtime::set_memory_source.
  static MemorySource source() {
    MemorySource source;
    source.allocate = [](size_t bytes) { return get().allocate(bytes); };
    source.free = [](void* memory) { get().release(memory); };
    source.on_host = [](const void* memory) { return get().on_host(memory); };
    source.backing = [](const void* memory) { return get().backing(memory); };
    source.reserve = [](size_t bytes) { return get().reserve(bytes); };
    source.release = [](void* addresses, size_t bytes) {
      get().release_addresses(addresses, bytes);
    };
    source.map = [](void* at, int file, uint64_t offset, size_t bytes) {
      return get().map_both(static_cast<char*>(at), bytes, file, offset);
    };
    source.unmap = [](void* at, size_t bytes) { get().unmap(static_cast<char*>(at), bytes); };
    return source;
  }

  /// nullptr: there is no room.
  void* allocate(size_t bytes) {
    size_t size = kSmallest;
    while (size < bytes && size < options_.bytes) size *= 2;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_[size];
    if (free.empty()) {
      if (size > options_.bytes - used_) return nullptr;
      free.push_back(shown_ + used_);
      used_ += size;
    }
    char* const block = free.back();
    free.pop_back();
    sizes_[block] = size;
    return block;
  }

  void release(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* const block = static_cast<char*>(memory);
    const size_t size = sizes_.at(block);
    if (size >= kLarge) madvise(on_host(memory), size, MADV_REMOVE);
    free_[size].push_back(block);
  }

  /// Where the host reaches what lies at this address on a device.
  char* on_host(const void* address) const {
    if (address == nullptr) return nullptr;
    return memory_ + (static_cast<const char*>(address) - shown_);
  }

  Backing backing(const void* address) const {
    return {file_, static_cast<uint64_t>(static_cast<const char*>(address) - shown_)};
  }

  /// Addresses in both mappings, aligned to their own length, up to 2 MiB.
  void* reserve(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_imports_[bytes];
    if (free.empty()) {
      const size_t aligned =
          bytes < kAligned ? used_imports_ : (used_imports_ + kAligned - 1) / kAligned * kAligned;
      if (aligned > options_.imports || bytes > options_.imports - aligned) return nullptr;
      free.push_back(shown_ + options_.bytes + aligned);
      used_imports_ = aligned + bytes;
    }
    char* const at = free.back();
    free.pop_back();
    return at;
  }
  void release_addresses(void* at, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_imports_[bytes].push_back(static_cast<char*>(at));
  }
  bool map_both(char* at, size_t bytes, int file, uint64_t offset) const {
    const auto map = [&](void* there, int access) {
      return mmap(there, bytes, access, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file,
                  static_cast<off_t>(offset)) != MAP_FAILED;
    };
    return map(on_host(at), PROT_READ | PROT_WRITE) && (!options_.hidden || map(at, PROT_NONE));
  }
  void unmap(char* at, size_t bytes) const {
    no_memory(bytes, at);
    if (options_.hidden) no_memory(bytes, on_host(at));
  }

 private:
  static constexpr size_t kSmallest = 512;
  static constexpr size_t kLarge = size_t{1} << 20;
  static constexpr size_t kAligned = size_t{1} << 21;

  explicit Arena(const Options& options)
      : options_(options), file_(memfd_create("device-memory", MFD_CLOEXEC)) {
    if (file_ < 0 || ftruncate(file_, static_cast<off_t>(options.bytes)) != 0) {
      throw std::runtime_error(std::string("shim: no memory for the devices: ") +
                               std::strerror(errno));
    }
    const size_t all = options.bytes + options.imports;
    shown_ = no_memory(all + kAligned, nullptr);
    shown_ += -reinterpret_cast<uintptr_t>(shown_) % kAligned;
    memory_ = options.hidden ? no_memory(all, nullptr) : shown_;
    if (!map_both(shown_, options.bytes, file_, 0)) {
      throw std::runtime_error(std::string("shim: no room for the devices' memory: ") +
                               std::strerror(errno));
    }
  }

  /// Addresses that lead nowhere: at `at`, or wherever there is room.
  static char* no_memory(size_t bytes, void* at) {
    const int fixed = at == nullptr ? 0 : MAP_FIXED;
    void* const made =
        mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
    if (made == MAP_FAILED) {
      throw std::runtime_error(std::string("shim: no addresses for the devices' memory: ") +
                               std::strerror(errno));
    }
    return static_cast<char*>(made);
  }

  const Options options_;
  const int file_;
  char* shown_ = nullptr;
  char* memory_ = nullptr;
  std::mutex mutex_;
  size_t used_ = 0;
  size_t used_imports_ = 0;
  std::map<size_t, std::vector<char*>> free_;
  std::map<size_t, std::vector<char*>> free_imports_;
  std::unordered_map<char*, size_t> sizes_;
};

}  // namespace fastcomm::shim
