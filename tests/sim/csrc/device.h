// The simulated device: its indices, its memory, its streams, and what torch asks of all devices.
//
// Everything that a device is given is done at once, by the host. So streams and events are names without
// work; whoever makes them real does it in Guard, in `Memory`, and where operators.h calls on_host().
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "arena.h"

namespace sim {

constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 8;

inline thread_local int current_device = 0;
inline thread_local std::array<c10::StreamId, kDevices> current_streams = {};

inline int index_of(c10::DeviceIndex index) { return index < 0 ? current_device : index; }
inline bool is_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

/// The memory of a tensor on a device as a tensor on the CPU, which keeps it alive.
inline at::Tensor on_host(const at::Tensor& tensor) {
  auto view = at::from_blob(
      Arena::get().on_host(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
      [kept = tensor.storage()](void*) {}, tensor.options().device(at::kCPU).pinned_memory(false),
      at::Device(at::kCPU));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

inline c10::DataPtr allocate_on(int index, size_t bytes) {
  const c10::Device device(kSim, static_cast<c10::DeviceIndex>(index));
  if (bytes == 0) return {nullptr, device};
  void* memory = Arena::get().allocate(bytes);
  return {memory, memory, &Arena::release, device};
}

inline void copy_memory(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  std::memcpy(Arena::get().on_host(to), Arena::get().on_host(from), bytes);
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device, bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    copy_memory(to, from, bytes);
  }
};

/// Host memory that devices reach: ordinary memory, of which it is known where it lies.
class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& get() {
    static auto* all = new PinnedMemory;  // outlives all tensors
    return *all;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(at::kCPU)};
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    TORCH_CHECK(memory != nullptr, "sim: no host memory for ", bytes, " pinned bytes");
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_[static_cast<char*>(memory)] = bytes;
    return {memory, memory, &release, c10::Device(at::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool contains(const void* address) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* byte = static_cast<const char*>(address);
    auto next = sizes_.upper_bound(const_cast<char*>(byte));
    if (next == sizes_.begin()) return false;
    --next;
    return byte < next->first + next->second;
  }

 private:
  static void release(void* memory) {
    {
      const std::lock_guard<std::mutex> lock(get().mutex_);
      get().sizes_.erase(static_cast<char*>(memory));
    }
    std::free(memory);
  }

  mutable std::mutex mutex_;
  std::map<char*, size_t> sizes_;
};

/// Gives a storage memory of another size, with what both have in common.
inline void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  auto made = allocate_on(storage.device().index(), bytes);
  copy_memory(made.get(), storage.data(), std::min(bytes, storage.nbytes()));
  storage.set_data_ptr_noswap(std::move(made));
  storage.set_nbytes(bytes);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr int kStreamsOfPool = 16;

  c10::DeviceType type() const override { return kSim; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device getDevice() const override { return at(current_device); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "invalid device ordinal: ", device, " of ", kDevices);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = index_of(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream(device, current_streams[index_of(device.index())]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override {
    static std::atomic<int> made{0};
    return stream(device, 1 + made++ % kStreamsOfPool);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const override {
    return getNewStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0; }

 private:
  static c10::Device at(int index) { return {kSim, static_cast<c10::DeviceIndex>(index)}; }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, at(index_of(device.index())), id);
  }
};

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(int index) {
    device_ = c10::Device(kSim, static_cast<c10::DeviceIndex>(index));
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device);
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    Guard().setDevice(c10::Device(kSim, index));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice(c10::Device(kSim, index)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  bool isPinnedPtr(const void* address) const override {
    return PinnedMemory::get().contains(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
  at::Device getDeviceFromPtr(void*) const override { return Guard().getDevice(); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static auto* all = [] {
      auto* made = new std::vector<at::Generator>;
      for (int each = 0; each < kDevices; ++each) {
        made->push_back(at::make_generator<Generator>(each));
      }
      return made;
    }();
    return all->at(index_of(index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index_of(index));
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace sim
