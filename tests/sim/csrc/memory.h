// The devices' memory, managed as by torch's caching allocator for CUDA: a freed block belongs to
// the stream that it was allocated for, and can be reused there at once. Whoever used it on another
// stream must have ordered the two streams, or have called recordStream.
//
// The next launch of its stream overwrites a freed block, as a GPU could use it again from then on.
// The shim's Order reports every use that is not ordered before that one. Bytes are counted per
// device. Any thread may call.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "streams.h"

namespace sim {

/// As torch's allocators, which ask for events while other threads capture streams.
class Relaxed {
 public:
  Relaxed() { std::swap(shim::capture_mode, before_); }
  ~Relaxed() { std::swap(shim::capture_mode, before_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode before_ = cudaStreamCaptureModeRelaxed;
};

class Memory final : public c10::DeviceAllocator {
 public:
  struct Block {
    char* memory;
    size_t bytes;    // of the block
    size_t counted;  // asked for
    int device;
    c10::StreamId stream;
    std::set<c10::StreamId> users;  // other streams of the device that use it
    bool captured;                  // a launch of a graph may use it at any time
  };

  static Memory& get() {
    static auto* all = new Memory;  // outlives all tensors
    return *all;
  }

  c10::DataPtr allocate(size_t bytes) override { return allocate_on(shim::current_device, bytes); }

  c10::DataPtr allocate_on(int device, size_t bytes) {
    const c10::Device place(kSim, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, place};
    reclaim();
    size_t size = kSmallest;
    while (size < bytes) size *= 2;
    const c10::StreamId stream = current_streams[device];
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& idle = idle_[{device, stream}][size];
    Block* block = nullptr;
    if (idle.empty()) {
      void* memory = shim::Runtime::get().allocate(size, device);
      TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "sim out of memory: tried ", bytes,
                       " bytes");
      block = new Block{static_cast<char*>(memory), size, 0, device, stream, {}, false};
    } else {
      block = idle.back();
      idle.pop_back();
      shim::Order::get().revive(block->memory);
    }
    block->counted = bytes;
    block->captured = is_captured(device, stream);
    now_[device] += bytes;
    peak_[device] = std::max(peak_[device], now_[device]);
    return {block->memory, block, &release, place};
  }

  /// Overwrites what the stream got back; called before each of its launches.
  void before_launch(const c10::Stream& stream) {
    if (is_captured(stream.device_index(), stream.id())) return;
    std::vector<Block*> mine;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = freed_.find({stream.device_index(), stream.id()});
      if (found == freed_.end() || found->second.empty()) return;
      mine.swap(found->second);
    }
    for (Block* block : mine) {
      const size_t bytes = std::min(block->bytes, (block->counted + 63) / 64 * 64);
      shim::Order::get().revive(block->memory);
      must(shim::submit(native(stream), "the allocator gives memory to others",
                        {shim::writes(block->memory, bytes)},
                        [to = static_cast<char*>(Arena::get().on_host(block->memory)), bytes] {
                          std::memset(to, 0xff, std::min(bytes, kMostPoison));
                        }),
           "poison");
      shim::Order::get().retire(block->memory, block->bytes);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Block* block : mine) idle_[{block->device, block->stream}][block->bytes].push_back(block);
  }

  /// Does nothing for memory that came from elsewhere.
  void record(const c10::DataPtr& data, const c10::Stream& stream) {
    if (data.get_context() == nullptr || data.get_deleter() != &release) return;
    auto* const block = static_cast<Block*>(data.get_context());
    TORCH_CHECK(block->device == stream.device_index(), "sim: memory of device ", block->device,
                " recorded on a stream of device ", static_cast<int>(stream.device_index()));
    if (block->stream == stream.id()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    block->users.insert(stream.id());
  }

  size_t allocated(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_[device];
  }
  size_t peak(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peak_[device];
  }
  void reset_peak(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    peak_[device] = now_[device];
  }

  void copy_data(void* to, const void* from, size_t bytes) const override;
  bool initialized() override { return true; }
  /// Nothing is given back to the device, but large memory costs nothing until it is touched.
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { record(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(index_of(device)); }

 private:
  static constexpr size_t kSmallest = 512;
  static constexpr size_t kMostPoison = size_t{1} << 20;

  /// A block that other streams have used, until they are past what they did with it.
  struct Awaited {
    Block* block;
    std::vector<cudaEvent_t> events;
  };

  static bool is_captured(int device, c10::StreamId id) {
    const cudaStream_t stream = native(stream_of(device, id));
    return stream != nullptr && stream->capture != nullptr;
  }

  static void release(void* context) { get().give_back(static_cast<Block*>(context)); }

  void give_back(Block* block) {
    Awaited awaited{block, {}};
    const OnDevice on(block->device);
    std::set<c10::StreamId> users;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      now_[block->device] -= block->counted;
      users.swap(block->users);
    }
    if (block->captured) return;  // never reused: launches of the graph use it
    shim::Order::get().retire(block->memory, block->bytes);
    for (const c10::StreamId id : users) {
      cudaEvent_t event = nullptr;
      static_cast<void>(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      static_cast<void>(cudaEventRecord(event, native(stream_of(block->device, id))));
      awaited.events.push_back(event);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool times_the_host = shim::Runtime::get().empty.load(std::memory_order_relaxed);
    if (times_the_host) {  // no launch overwrites it: the next allocation may take it
      idle_[{block->device, block->stream}][block->bytes].push_back(block);
    } else if (awaited.events.empty()) {
      freed_[{block->device, block->stream}].push_back(block);
    } else {
      awaited_.push_back(std::move(awaited));
    }
  }

  /// Gives a block back to its stream once its other users are done.
  void reclaim() {
    const Relaxed beside;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < awaited_.size();) {
      Awaited& each = awaited_[i];
      const bool done = std::all_of(each.events.begin(), each.events.end(), [](cudaEvent_t event) {
        return cudaEventQuery(event) == cudaSuccess;
      });
      if (!done) {
        ++i;
        continue;
      }
      for (const cudaEvent_t event : each.events) static_cast<void>(cudaEventDestroy(event));
      freed_[{each.block->device, each.block->stream}].push_back(each.block);
      std::swap(each, awaited_.back());
      awaited_.pop_back();
    }
  }

  using Place = std::pair<int, c10::StreamId>;  // device, stream
  std::mutex mutex_;
  std::map<Place, std::map<size_t, std::vector<Block*>>> idle_;
  std::map<Place, std::vector<Block*>> freed_;
  std::vector<Awaited> awaited_;
  size_t now_[kDevices] = {};
  size_t peak_[kDevices] = {};
};

/// Gives a stream work that uses `accesses`. Its exception is raised by the next call that waits.
inline void launch(const c10::Stream& stream, const char* what, std::vector<shim::Access> accesses,
                   std::function<void()> work) {
  const OnDevice on(stream.device_index());
  Memory::get().before_launch(stream);
  must(shim::submit(native(stream), what, std::move(accesses),
                    [work = std::move(work)] {
                      at::init_num_threads();  // as many as the program has asked for
                      dawdle();
                      try {
                        work();
                      } catch (const std::exception& error) {
                        LateError::set(error.what());
                      }
                    }),
       what);
}

inline void copy_memory(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  launch(current_stream(shim::current_device), "a copy of a storage",
         {shim::reads(from, bytes), shim::writes(to, bytes)},
         [to = Arena::get().on_host(to), from = Arena::get().on_host(from), bytes] {
           std::memcpy(to, from, bytes);
         });
}
inline void Memory::copy_data(void* to, const void* from, size_t bytes) const {
  copy_memory(to, from, bytes);
}

/// Gives a storage memory of another size, keeping the common content.
inline void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  const c10::DeviceGuard on(storage.device());
  auto made = Memory::get().allocate_on(storage.device().index(), bytes);
  copy_memory(made.get(), storage.data(), std::min(bytes, storage.nbytes()));
  storage.set_data_ptr_noswap(std::move(made));
  storage.set_nbytes(bytes);
}

/// Host memory that devices reach. It is given back once the copies that torch made of it are done.
/// Any other use must have been waited for before that, or it is reported.
class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& get() {
    static auto* all = new PinnedMemory;  // outlives all tensors
    return *all;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(at::kCPU)};
    free_settled();
    void* memory = shim::Runtime::get().allocate(bytes, -1);
    TORCH_CHECK(memory != nullptr, "sim: no host memory for ", bytes, " pinned bytes");
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[static_cast<char*>(memory)] = Block{bytes, {}};
    return {memory, memory, &release, c10::Device(at::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool contains(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return find(address) != blocks_.end();
  }
  /// Notes a use by a stream, for which the caller need not wait.
  void record(const void* address, const c10::Stream& stream) {
    const OnDevice on(stream.device_index());
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = find(address);
    if (block == blocks_.end()) return;
    cudaEvent_t event = nullptr;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    must(cudaEventRecord(event, native(stream)), "an event");
    block->second.events.push_back(event);
  }

 private:
  struct Block {
    size_t bytes;
    std::vector<cudaEvent_t> events;
  };
  using Blocks = std::map<char*, Block>;

  Blocks::iterator find(const void* address) {
    char* const byte = static_cast<char*>(const_cast<void*>(address));
    auto next = blocks_.upper_bound(byte);
    if (next == blocks_.begin()) return blocks_.end();
    --next;
    return byte < next->first + next->second.bytes ? next : blocks_.end();
  }

  static void release(void* memory) {
    {
      const std::lock_guard<std::mutex> lock(get().mutex_);
      const auto block = get().blocks_.find(static_cast<char*>(memory));
      get().freed_.push_back({block->first, std::move(block->second)});
      get().blocks_.erase(block);
    }
    get().free_settled();
  }

  void free_settled() {
    const Relaxed beside;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < freed_.size();) {
      auto& [memory, block] = freed_[i];
      const bool done =
          std::all_of(block.events.begin(), block.events.end(),
                      [](cudaEvent_t event) { return cudaEventQuery(event) == cudaSuccess; });
      if (!done) {
        ++i;
        continue;
      }
      for (const cudaEvent_t event : block.events) static_cast<void>(cudaEventDestroy(event));
      static_cast<void>(cudaFreeHost(memory));
      std::swap(freed_[i], freed_.back());
      freed_.pop_back();
    }
  }

  std::mutex mutex_;
  Blocks blocks_;
  std::vector<std::pair<char*, Block>> freed_;
};

}  // namespace sim
