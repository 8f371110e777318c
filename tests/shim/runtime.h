// Enough of the CUDA runtime to run host code that uses several devices, streams and events without
// a GPU. Kernels are the business of shim/shim.h, which enqueues them here.
//
// All devices' memory is the host's. What a device would see at an address is asked of device_view:
// its own memory, a peer's if access to it has been enabled, pinned memory; something else where a
// link is broken; an error where a GPU would report an illegal address.
//
// Until configure() has been called there is one device, and its stream 0 runs what it is given at
// once, in the calling thread: ranks are then threads of the host.
//
// As strict as CUDA where code may err: launching in a stream of a device that is not current,
// recording an event of another device than its stream's, enabling access twice.
//
// Everything that a stream is given names the bytes that it uses, and shim/order.h checks
// their order: a copy names its own, a kernel's are those that its launcher has asked a view of
// (kernel_view in core/cuda_host.h).
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shim/capture.h"
#include "shim/contexts.h"
#include "shim/memory_source.h"
#include "shim/stream.h"

using cudaError_t = int;
using cudaStream_t = fastcomm::shim::Stream*;
using cudaEvent_t = fastcomm::shim::Event*;

constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorInvalidValue = 1;
constexpr cudaError_t cudaErrorMemoryAllocation = 2;
constexpr cudaError_t cudaErrorInvalidDevice = 101;
constexpr cudaError_t cudaErrorDeviceUninitialized = 201;
constexpr cudaError_t cudaErrorMapBufferObjectFailed = 205;
constexpr cudaError_t cudaErrorPeerAccessUnsupported = 217;
constexpr cudaError_t cudaErrorInvalidResourceHandle = 400;
constexpr cudaError_t cudaErrorNotReady = 600;
constexpr cudaError_t cudaErrorPeerAccessAlreadyEnabled = 704;
constexpr cudaError_t cudaErrorHostMemoryAlreadyRegistered = 712;
constexpr cudaError_t cudaErrorHostMemoryNotRegistered = 713;
constexpr cudaError_t cudaErrorNotSupported = 801;
constexpr cudaError_t cudaErrorStreamCaptureUnsupported = 900;
constexpr cudaError_t cudaErrorStreamCaptureInvalidated = 901;
constexpr cudaError_t cudaErrorStreamCaptureUnjoined = 904;
constexpr cudaError_t cudaErrorStreamCaptureIsolation = 905;
constexpr cudaError_t cudaErrorStreamCaptureImplicit = 906;
constexpr unsigned cudaEventDisableTiming = 2;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaHostAllocPortable = 1;
constexpr unsigned cudaHostAllocMapped = 2;
constexpr unsigned cudaHostRegisterPortable = 1;
constexpr unsigned cudaHostRegisterMapped = 2;
constexpr int cudaDevAttrMultiProcessorCount = 16;
constexpr int cudaDevAttrKernelExecTimeout = 17;
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
  kTired,        // other bytes come while several streams of the reader are at work
  kSlow,         // every use takes a while
};
enum class Use { kRead, kWrite };

inline thread_local cudaError_t last_error = cudaSuccess;
/// What the kernel that this thread launches next will use.
inline thread_local std::vector<Access> next_accesses;
/// If not nullptr, and not zero there when the kernel starts, the kernel does nothing.
inline thread_local const uint32_t* next_skip = nullptr;

class Runtime {
 public:
  static Runtime& get() {
    static Runtime& runtime = *new Runtime;  // never destroyed: workers may still run at exit
    return runtime;
  }
  /// Called when a process first uses the runtime, if a program has set it; it may not get().
  inline static void (*set_up)(Runtime&) = nullptr;

  /// links[a][b]: what device a can do with the memory of device b. `queues` is how many a device
  /// has, which streams take in turn; 0: each stream has its own. Before any stream is used.
  void configure(const std::vector<std::vector<Link>>& links, int queues = 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    links_ = links;
    enabled_.assign(links.size(), std::vector<bool>(links.size(), false));
    queues_.assign(links.size(), std::vector<Queue*>(queues));
    made_streams_.assign(links.size(), 0);
    default_streams_.clear();
    for (size_t d = 0; d < links.size(); ++d) {
      default_streams_.push_back(make_stream_locked(static_cast<int>(d)));
    }
  }
  /// Before anything is allocated.
  void set_memory_source(const MemorySource& source) { source_ = source; }

  Stream* make_stream(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return make_stream_locked(device);
  }
  void destroy(Stream* stream) {
    std::lock_guard<std::mutex> lock(destroying_);
    {
      std::lock_guard<std::mutex> streams(mutex_);
      streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
    }
    delete stream;
  }
  /// Each stream of a device; none is destroyed meanwhile.
  template <class Body>
  void each_stream(int device, const Body& body) {
    std::lock_guard<std::mutex> lock(destroying_);
    std::vector<Stream*> all;
    {
      std::lock_guard<std::mutex> streams(mutex_);
      all = streams_;
    }
    for (Stream* stream : all) {
      if (stream->device() == device) body(stream);
    }
  }

  bool configured() const { return !links_.empty(); }
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
    const size_t size = (bytes + red_zone + 255) / 256 * 256;
    if (size < bytes || size > most_bytes) return nullptr;
    void* memory = device == -1 ? std::aligned_alloc(256, size) : source_.allocate(size);
    if (memory == nullptr) return nullptr;
    // Stands for whatever was there before; of much memory only as much as is quickly written.
    void* const there = device == -1 ? memory : source_.on_host(memory);
    std::memset(there, 0xa5, std::min(size, size_t{1} << 22));
    comes(memory, bytes, there);
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(memory)] = Range{bytes, device};
    ++allocations;
    return memory;
  }
  cudaError_t free(void* memory) {
    if (memory == nullptr) return cudaSuccess;
    goes(memory);
    std::unique_lock<std::mutex> lock(mutex_);
    auto found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
    if (found == ranges_.end() || found->second.mapped) return cudaErrorInvalidValue;
    if (found->second.before_free) {
      const std::function<void()> before_free = std::move(found->second.before_free);
      lock.unlock();
      before_free();
      lock.lock();
      found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
    }
    Order::get().freed(memory, found->second.bytes);
    std::free(found->second.shadow);
    if (found->second.device == -1) {
      std::free(memory);
    } else {
      source_.free(memory);
    }
    ranges_.erase(found);
    return cudaSuccess;
  }

  const MemorySource& memory_source() const { return source_; }

  /// The allocation that an address lies in.
  struct Allocation {
    void* base;
    size_t bytes;
    int device;   // -1: pinned memory of the host
    bool mapped;  // not by allocate(): another process's, or by its handle
  };
  std::optional<Allocation> find(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex_);
    auto range = ranges_.upper_bound(address);
    if (range == ranges_.begin()) return {};
    --range;
    const auto& [base, there] = *range;
    if (address - base >= std::max<size_t>(there.bytes, 1)) return {};
    return Allocation{reinterpret_cast<void*>(base), there.bytes, there.device, there.mapped};
  }
  /// How many allocations of at least so many bytes a device has; -1: pinned memory of the host.
  int living(int device, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int>(std::count_if(ranges_.begin(), ranges_.end(), [&](const auto& range) {
      return range.second.device == device && range.second.bytes >= bytes && !range.second.mapped;
    }));
  }
  /// Called once, before the memory is freed.
  void before_free(void* memory, std::function<void()> call) {
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_.at(reinterpret_cast<uintptr_t>(memory)).before_free = std::move(call);
  }
  /// Memory of `device` that was not allocated here; until forget(). By grant: for the devices
  /// granted access alone, else also for those that have access to all of that device's.
  void adopt(void* memory, size_t bytes, int device, bool by_grant) {
    comes(memory, bytes, device == -1 ? memory : source_.on_host(memory));
    std::lock_guard<std::mutex> lock(mutex_);
    Range& made = ranges_[reinterpret_cast<uintptr_t>(memory)] = Range{bytes, device};
    made.mapped = true;
    made.by_grant = by_grant;
  }
  void grant(void* memory, int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_.at(reinterpret_cast<uintptr_t>(memory)).granted.insert(device);
  }
  /// The host's own memory, which devices use from here on; until unregister_host().
  cudaError_t register_host(void* memory, size_t bytes) {
    if (!registers) return cudaErrorNotSupported;
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto next = ranges_.lower_bound(begin);
      if (next != ranges_.end() && next->first < begin + bytes) {
        return cudaErrorHostMemoryAlreadyRegistered;
      }
      if (next != ranges_.begin() && (--next)->first + next->second.bytes > begin) {
        return cudaErrorHostMemoryAlreadyRegistered;
      }
    }
    adopt(memory, bytes, -1, /*by_grant=*/false);
    return cudaSuccess;
  }
  cudaError_t unregister_host(void* memory) {
    const auto found = find(memory);
    if (!found || found->base != memory || found->device != -1 || !found->mapped) {
      return cudaErrorHostMemoryNotRegistered;
    }
    forget(memory);
    return cudaSuccess;
  }
  void forget(void* memory) {
    goes(memory);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
    Order::get().freed(memory, found->second.bytes);
    std::free(found->second.shadow);
    ranges_.erase(found);
  }

  /// Where the host finds memory of a device; other addresses are the host's own.
  char* on_host(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex_);
    auto range = ranges_.upper_bound(address);
    if (range != ranges_.begin() && (--range)->second.device != -1 &&
        address - range->first <= range->second.bytes) {
      return source_.on_host(pointer);
    }
    return static_cast<char*>(const_cast<void*>(pointer));
  }

  /// Where a kernel on `device` ends up that uses `pointer`. Raises what a GPU reports later.
  char* view(int device, const void* pointer, Use use) {
    char* const given = static_cast<char*>(const_cast<void*>(pointer));
    if (empty.load(std::memory_order_relaxed)) return given;  // nothing uses it
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex_);
    if (links_.empty()) return given;  // ranks are threads
    auto range = ranges_.upper_bound(address);
    if (range == ranges_.begin()) illegal(device, pointer, "which nobody allocated");
    --range;
    const uintptr_t offset = address - range->first;
    Range& there = range->second;
    if (offset > there.bytes) illegal(device, pointer, "which nobody allocated");
    if (there.device == -1) return given;
    char* const real = source_.on_host(pointer);
    const bool own = there.device == device;
    const bool reached = !there.by_grant && (own || enabled_[device][there.device]);
    if (!reached && there.granted.count(device) == 0) {
      illegal(device, pointer, "of a device out of its reach");
    }
    if (own) return real;
    const Link link = links_[device][there.device];
    const bool tired =
        link == Link::kTired && busy_streams[device].load(std::memory_order_relaxed) > 1;
    const bool broken = ((link == Link::kBrokenReads || tired) && use == Use::kRead) ||
                        (link == Link::kLostWrites && use == Use::kWrite);
    if (link == Link::kSlow) usleep(20'000);
    if (!broken) return real;
    if (there.shadow == nullptr) there.shadow = static_cast<char*>(std::calloc(1, there.bytes + 1));
    return there.shadow + offset;
  }

  // Told of memory that devices may use, when it is there and before it goes.
  std::function<void(void* memory, size_t bytes, void* on_host)> comes = [](auto...) {};
  std::function<void(void* memory)> goes = [](auto...) {};
  size_t red_zone = 0;                  // behind each allocation, which nobody may use
  size_t most_bytes = size_t{1} << 40;  // what an allocation may take: less, to see one fail
  bool registers = true;                // the host's own memory: not everywhere
  std::set<int> displays;               // devices that drive one; before any is used
  // Nothing is executed: to time what the host does. Set while nothing is under way, and for good.
  std::atomic<bool> empty{false};
  std::atomic<uint64_t> allocations{0};  // so far

 private:
  Runtime() {
    if (set_up != nullptr) set_up(*this);
  }

  struct Range {
    size_t bytes;
    int device;
    char* shadow = nullptr;  // what is seen through broken links
    bool mapped = false;
    bool by_grant = false;
    std::set<int> granted = {};
    std::function<void()> before_free = nullptr;
  };

  [[noreturn]] static void illegal(int device, const void* pointer, const char* what) {
    throw std::logic_error("shim: device " + std::to_string(device) + " uses memory at " +
                           std::to_string(reinterpret_cast<uintptr_t>(pointer)) + ", " + what);
  }

  Stream* make_stream_locked(int device) {
    Queue** queue = nullptr;
    if (!links_.empty() && !queues_[device].empty()) {
      queue = &queues_[device][made_streams_[device]++ % queues_[device].size()];
      if (*queue == nullptr) *queue = new Queue;
    }
    streams_.push_back(new Stream(device, queue == nullptr ? nullptr : *queue));
    return streams_.back();
  }

  std::mutex destroying_;  // before mutex_
  std::mutex mutex_;       // of host threads alone
  std::vector<Stream*> streams_;
  MemorySource source_;
  std::vector<std::vector<Link>> links_;
  std::vector<std::vector<Queue*>> queues_;
  std::vector<uint64_t> made_streams_;
  std::vector<std::vector<bool>> enabled_;
  std::vector<Stream*> default_streams_;
  std::map<uintptr_t, Range> ranges_;
};

inline cudaError_t fail(cudaError_t error) { return last_error = error; }

/// The refusal of a call that is unsafe beside a capture; else cudaSuccess.
inline cudaError_t unsafe() {
  return Capture::forbids() ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

}  // namespace fastcomm::shim

#include "shim/runtime_api.h"  // IWYU pragma: export
