// Memory, streams and waiting for tests of CUDA kernels that run in two ways from one source: on
// the host under the execution shim (FC_SHIM), where a device's memory is the host's, and on a GPU,
// where the test is compiled by nvcc.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/cuda_api.h"

namespace fastcomm::testing {

constexpr size_t kMemoryAlignment = 256;  // what cudaMalloc promises

#if defined(FC_SHIM)
constexpr bool kOnDevice = false;

inline void* allocate(size_t bytes) {
  return std::aligned_alloc(kMemoryAlignment, (bytes / kMemoryAlignment + 1) * kMemoryAlignment);
}
inline void release(void* memory) { std::free(memory); }
inline void* allocate_for_both(size_t bytes) { return allocate(bytes); }
inline void release_for_both(void* memory) { release(memory); }
inline void copy_memory(void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
inline void synchronize() {}
inline cudaStream_t make_stream() { return nullptr; }
inline void synchronize(cudaStream_t) {}
inline void destroy_stream(cudaStream_t) {}
#else
constexpr bool kOnDevice = true;

inline void must(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}
inline void* allocate(size_t bytes) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes + 1));
  return memory;
}
inline void release(void* memory) { (void)cudaFree(memory); }
inline void* allocate_for_both(size_t bytes) {
  void* memory = nullptr;
  must(cudaHostAlloc(&memory, bytes + 1, cudaHostAllocMapped | cudaHostAllocPortable));
  return memory;
}
inline void release_for_both(void* memory) { (void)cudaFreeHost(memory); }
inline void copy_memory(void* to, const void* from, size_t bytes) {
  if (bytes != 0) must(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  must(cudaDeviceSynchronize());  // a copy from pageable memory may return before it is done
}
inline void synchronize() { must(cudaDeviceSynchronize()); }
inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
inline void synchronize(cudaStream_t stream) { must(cudaStreamSynchronize(stream)); }
inline void destroy_stream(cudaStream_t stream) { (void)cudaStreamDestroy(stream); }
#endif

/// Memory of the device, zeroed.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes)
      : memory_(static_cast<char*>(allocate(bytes)), release), bytes_(bytes) {
    upload(std::vector<char>(bytes));
  }

  char* get() const { return memory_.get(); }
  size_t bytes() const { return bytes_; }

  void upload(const std::vector<char>& data, size_t at = 0) {
    copy_memory(get() + at, data.data(), data.size());
  }
  std::vector<char> download() const {
    std::vector<char> data(bytes_);
    copy_memory(data.data(), get(), bytes_);
    return data;
  }

 private:
  std::unique_ptr<char, void (*)(void*)> memory_;
  size_t bytes_;
};

/// `count` zeroed T that both host and device read and write, as records of failed waits are.
template <class T>
class SharedArray {
 public:
  explicit SharedArray(size_t count)
      : memory_(static_cast<T*>(allocate_for_both(count * sizeof(T))), release_for_both) {
    for (size_t i = 0; i < count; ++i) memory_.get()[i] = T{};
  }
  T* get() const { return memory_.get(); }

 private:
  std::unique_ptr<T, void (*)(void*)> memory_;
};

/// Many buffers in one run of memory, each with guards around it. The test records what it expects
/// of all of it, byte for byte.
class Arena {
 public:
  static constexpr char kFill = 0x5a;
  static constexpr size_t kGuard = 24;

  /// Adds room for `bytes` that begin `offset` bytes after a boundary of `alignment`; returns
  /// where.
  size_t add(size_t bytes, size_t offset, size_t alignment = 16) {
    size_t at = (wanted_.size() + kGuard + alignment - 1) / alignment * alignment + offset;
    wanted_.resize(at + bytes + kGuard, kFill);
    return at;
  }
  char* host(size_t at) { return wanted_.data() + at; }
  /// A place on the device, once all have been added.
  char* device(size_t at) {
    if (!memory_) memory_ = std::make_unique<DeviceMemory>(wanted_.size());
    return memory_->get() + at;
  }
  void upload() {
    device(0);
    memory_->upload(wanted_);
  }
  /// The first byte that differs from what is wanted, or -1. `adjust` may change what was found: it
  /// gets the memory from the start.
  template <class Adjust>
  long first_difference(const Adjust& adjust) const {
    synchronize();
    std::vector<char> got = memory_->download();
    adjust(got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] != wanted_[i]) return static_cast<long>(i);
    }
    return -1;
  }
  long first_difference() const {
    return first_difference([](char*) {});
  }

 private:
  std::vector<char> wanted_;
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace fastcomm::testing
