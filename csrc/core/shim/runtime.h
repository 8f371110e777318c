// Enough of the CUDA runtime to run host code that uses several devices, streams and events without
// a GPU. Kernels are the business of kernels/shim/shim.h, which enqueues them here.
//
// All devices' memory is the host's. What a device would see at an address is asked of device_view:
// its own memory, a peer's if access to it has been enabled, pinned memory; something else where a
// link is broken; an error where a GPU would report an illegal address.
//
// Until configure() has been called there is one device, and its stream 0 runs what it is given in
// the caller, at once: ranks are then threads of the host.
//
// As strict as CUDA where code may err: launching in a stream of another than the current device,
// recording an event of another device than its stream's, enabling access twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/shim/contexts.h"
#include "core/shim/stream.h"

using cudaError_t = int;
using cudaStream_t = fastcomm::shim::Stream*;
using cudaEvent_t = fastcomm::shim::Event*;

constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorInvalidValue = 1;
constexpr cudaError_t cudaErrorMemoryAllocation = 2;
constexpr cudaError_t cudaErrorInvalidDevice = 101;
constexpr cudaError_t cudaErrorPeerAccessUnsupported = 217;
constexpr cudaError_t cudaErrorInvalidResourceHandle = 400;
constexpr cudaError_t cudaErrorNotReady = 600;
constexpr cudaError_t cudaErrorPeerAccessAlreadyEnabled = 704;
constexpr unsigned cudaEventDisableTiming = 2;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaHostAllocPortable = 1;
constexpr unsigned cudaHostAllocMapped = 2;
constexpr int cudaDevAttrMultiProcessorCount = 16;
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDefault = 4
};

namespace fastcomm::shim {

/// What one device can do with another's memory.
enum class Link {
  kNone,         // the driver grants no access
  kDirect,       // access as it should be
  kBrokenReads,  // the driver grants it, but other bytes come
  kLostWrites,   // the driver grants it, but writes do not arrive
};
enum class Use { kRead, kWrite };

inline thread_local cudaError_t last_error = cudaSuccess;

class Runtime {
 public:
  static Runtime& get() {
    static Runtime& runtime = *new Runtime;  // never destroyed: workers may still run at exit
    return runtime;
  }

  /// links[a][b]: what device a can do with the memory of device b. Before any stream is used.
  void configure(const std::vector<std::vector<Link>>& links) {
    std::lock_guard<std::mutex> lock(mutex_);
    links_ = links;
    enabled_.assign(links.size(), std::vector<bool>(links.size(), false));
    default_streams_.clear();
    for (size_t d = 0; d < links.size(); ++d) {
      default_streams_.push_back(new Stream(static_cast<int>(d)));
    }
  }

  int devices() const { return links_.empty() ? 1 : static_cast<int>(links_.size()); }
  bool can_access(int device, int peer) const {
    return device != peer && links_[device][peer] != Link::kNone;
  }
  cudaError_t enable(int device, int peer) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!can_access(device, peer)) return cudaErrorPeerAccessUnsupported;
    if (enabled_[device][peer]) return cudaErrorPeerAccessAlreadyEnabled;
    enabled_[device][peer] = true;
    return cudaSuccess;
  }

  /// The stream that `stream` means on the current device; nullptr: run it in the caller.
  Stream* resolve(Stream* stream) const {
    if (stream != nullptr) return stream;
    return default_streams_.empty() ? nullptr : default_streams_[current_device];
  }

  /// `device` -1: pinned memory of the host.
  void* allocate(size_t bytes, int device) {
    const size_t size = (bytes + 255) / 256 * 256;
    if (size < bytes || size > most_bytes) return nullptr;
    void* memory = std::aligned_alloc(256, size);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xa5, size);  // whatever was there before
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(memory)] = Range{bytes, device, nullptr};
    ++allocations;
    return memory;
  }
  cudaError_t free(void* memory) {
    if (memory == nullptr) return cudaSuccess;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
    if (found == ranges_.end()) return cudaErrorInvalidValue;
    std::free(found->second.shadow);
    std::free(memory);
    ranges_.erase(found);
    return cudaSuccess;
  }

  /// Where a kernel on `device` ends up that uses `pointer`. Raises what a GPU reports later.
  char* view(int device, const void* pointer, Use use) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex_);
    auto range = ranges_.upper_bound(address);
    if (range == ranges_.begin()) illegal(device, pointer, "which nobody allocated");
    --range;
    const uintptr_t offset = address - range->first;
    Range& there = range->second;
    if (offset > there.bytes) illegal(device, pointer, "which nobody allocated");
    char* real = reinterpret_cast<char*>(address);  // NOLINT(performance-no-int-to-ptr)
    if (there.device == -1 || there.device == device) return real;
    if (!enabled_[device][there.device]) illegal(device, pointer, "of a device out of its reach");
    const Link link = links_[device][there.device];
    const bool broken = (link == Link::kBrokenReads && use == Use::kRead) ||
                        (link == Link::kLostWrites && use == Use::kWrite);
    if (!broken) return real;
    if (there.shadow == nullptr) there.shadow = static_cast<char*>(std::calloc(1, there.bytes + 1));
    return there.shadow + offset;
  }

  size_t most_bytes = size_t{1} << 40;   // what an allocation may take: less, to see one fail
  std::atomic<uint64_t> allocations{0};  // so far

 private:
  struct Range {
    size_t bytes;
    int device;
    char* shadow;  // what is seen through broken links
  };

  [[noreturn]] static void illegal(int device, const void* pointer, const char* what) {
    throw std::logic_error("shim: device " + std::to_string(device) + " uses memory at " +
                           std::to_string(reinterpret_cast<uintptr_t>(pointer)) + ", " + what);
  }

  std::mutex mutex_;  // of host threads alone
  std::vector<std::vector<Link>> links_;
  std::vector<std::vector<bool>> enabled_;
  std::vector<Stream*> default_streams_;
  std::map<uintptr_t, Range> ranges_;
};

inline cudaError_t fail(cudaError_t error) { return last_error = error; }

/// Runs `work` in a stream of the current device, or in the caller where there are no streams.
template <class Work>
cudaError_t submit(cudaStream_t stream, Work work) {
  Stream* const target = Runtime::get().resolve(stream);
  if (target == nullptr) {
    work();
    return cudaSuccess;
  }
  need_context();
  if (target->device() != current_device) return fail(cudaErrorInvalidResourceHandle);
  target->enqueue(std::move(work));
  return cudaSuccess;
}

}  // namespace fastcomm::shim

#include "core/shim/capture.h"      // IWYU pragma: export
#include "core/shim/runtime_api.h"  // IWYU pragma: export
