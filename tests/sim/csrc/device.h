// What torch requires of all devices: the current one, streams, events, generators, pinned memory.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <vector>

#include "memory.h"

namespace sim {

inline bool is_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device getDevice() const override { return at(shim::current_device); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "invalid device ordinal: ", device, " of ", kDevices);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    const int index = index_of(device.index());
    if (index != shim::current_device) shim::set_device_only(index);  // as torch's SetDevice
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(index_of(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device.index()), 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority = 0) const override {
    static std::array<std::atomic<int>, 2> made = {};
    const bool high = priority < 0;
    return stream_of(index_of(device.index()),
                     (high ? kFirstOfHighPriority : 1) + made[high]++ % kStreamsOfPool);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high = false) const override {
    return getNewStream(device, high ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return native(stream); }

  bool queryStream(const c10::Stream& stream) const override {
    const OnDevice on(stream.device_index());
    return is_done(cudaStreamQuery(native(stream)), "cudaStreamQuery");
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const OnDevice on(index_of(index));
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    LateError::check();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    TORCH_CHECK(index < 0 || index == stream.device_index(), "Event device index ",
                static_cast<int>(index), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    const OnDevice on(stream.device_index());
    if (*event == nullptr) {
      cudaEvent_t made = nullptr;
      must(cudaEventCreateWithFlags(&made, 0), "cudaEventCreate");
      *event = made;
    }
    must(cudaEventRecord(static_cast<cudaEvent_t>(*event), native(stream)), "cudaEventRecord");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const OnDevice on(stream.device_index());
    must(cudaStreamWaitEvent(native(stream), static_cast<cudaEvent_t>(event), 0),
         "cudaStreamWaitEvent");
  }
  bool queryEvent(void* event) const override {
    return event == nullptr ||
           is_done(cudaEventQuery(static_cast<cudaEvent_t>(event)), "cudaEventQuery");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      must(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
    }
    LateError::check();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin),
                              static_cast<cudaEvent_t>(end)),
         "cudaEventElapsedTime");
    return milliseconds;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Memory::get().record(data, stream);
  }

 private:
  static bool is_done(cudaError_t result, const char* what) {
    if (result == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    must(result, what);
    return true;
  }
  static c10::Device at(int index) { return {kSim, static_cast<c10::DeviceIndex>(index)}; }
};

/// Operators that draw numbers run at once, so the CPU's generator draws in the program's order.
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
    return static_cast<c10::DeviceIndex>(shim::current_device);
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
