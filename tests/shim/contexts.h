// Contexts under the execution shim: which devices have one, and which is current to a thread. The
// runtime's own device of a thread is the one that cudaSetDevice named last; what the driver has
// pushed takes precedence. `current_device` is the result of both.
//
// The driver has a lock for each process that launches, allocations and queries take for a moment,
// and that some calls hold until a device has done its work, such as the load of a module.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace fastcomm::shim {

inline thread_local int current_device = 0;
inline thread_local int runtime_device = 0;
inline thread_local std::vector<int> pushed_devices;
inline std::atomic<bool> contexts[64];  // a device each

/// Relaxed throughout: CUDA promises no order between calls that only share its lock.
inline std::atomic<bool> driver_is_held{false};

/// Takes the driver's lock for a moment.
inline void pass_driver() {
  while (driver_is_held.load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// Holds the driver's lock while `body` runs.
template <class Body>
void with_driver(const Body& body) {
  while (driver_is_held.exchange(true, std::memory_order_relaxed)) pass_driver();
  body();
  driver_is_held.store(false, std::memory_order_relaxed);
}

/// Done by everything that needs a context, such as allocations and launches.
inline void need_context() {
  contexts[current_device] = true;
  pass_driver();
}

/// As torch makes a device current: without a context, if there is none yet.
inline void set_device_only(int device) {
  runtime_device = current_device = device;
  if (!pushed_devices.empty()) pushed_devices.back() = device;  // it replaces the thread's context
}

/// cudaSetDevice, as it is since CUDA 12.
inline void set_device(int device) {
  set_device_only(device);
  need_context();
}

inline void push_device(int device) {
  pushed_devices.push_back(device);
  current_device = device;
  need_context();
}

inline void pop_device() {
  pushed_devices.pop_back();
  current_device = pushed_devices.empty() ? runtime_device : pushed_devices.back();
}

}  // namespace fastcomm::shim
