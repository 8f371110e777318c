// Where the memory of the shim's devices comes from: the host's, or a file that other processes map
// too (shim/arena.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace fastcomm::shim {

/// Where an allocation lies in a file of this process. No file: only this process has it.
struct Backing {
  int file = -1;
  uint64_t offset = 0;
};

struct MemorySource {
  void* (*allocate)(size_t bytes) = [](size_t bytes) { return std::aligned_alloc(256, bytes); };
  void (*free)(void* memory) = std::free;
  /// Where the host finds what lies there on a device.
  char* (*on_host)(const void* memory) = [](const void* memory) {
    return static_cast<char*>(const_cast<void*>(memory));
  };
  Backing (*backing)(const void* memory) = [](const void*) { return Backing(); };
  /// Addresses for what map() puts there, until release(); nullptr: there are none.
  void* (*reserve)(size_t bytes) = [](size_t) -> void* { return nullptr; };
  void (*release)(void* addresses, size_t bytes) = [](void*, size_t) {};
  /// Whole pages of a file, as memory of a device; false: not possible. The file may be closed.
  bool (*map)(void* at, int file, uint64_t offset, size_t bytes) = [](void*, int, uint64_t,
                                                                      size_t) { return false; };
  void (*unmap)(void* at, size_t bytes) = [](void*, size_t) {};
};

}  // namespace fastcomm::shim
