// Memory of this process that its peers have mapped, for data that they read and write in place.
//
// A child of fork() shares the memory with its parent (both see each other's writes); it frees
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/endpoint.h"

namespace fastcomm {

class SharedBuffer {
 public:
  /// At least `bytes`, page-aligned, zeroed, and backed by memory. Raises Error(kSystem) if the
  /// segment or the machine has none left.
  SharedBuffer(Endpoint& endpoint, size_t bytes);
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;
  /// Gives the memory back, once no failed operation may still write to it.
  ~SharedBuffer();

  void* data() const { return endpoint_.segment().mapping().at(offset_); }

 private:
  Endpoint& endpoint_;
  size_t bytes_;
  uint64_t offset_;
};

}  // namespace fastcomm
