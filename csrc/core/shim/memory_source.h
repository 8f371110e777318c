// Where the memory of the shim's devices comes from: the host's, or a file that other processes map
// too (core/shim/arena.h).
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
  /// Bytes of a file as memory of a device; nullptr: it cannot be mapped. The file may be closed.
  void* (*map)(int file, uint64_t offset, size_t bytes) = [](int, uint64_t, size_t) -> void* {
    return nullptr;
  };
  /// Of what map() gave.
  void (*unmap)(void* memory, size_t bytes) = [](void*, size_t) {};
};

}  // namespace fastcomm::shim
