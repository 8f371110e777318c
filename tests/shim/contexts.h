// Contexts under the execution shim: which devices have one, and which is current to a thread. The
// runtime's own device of a thread is the one that cudaSetDevice named last; what the driver has
// pushed takes precedence. `current_device` is the result of both.
#pragma once

#include <atomic>
#include <vector>

namespace fastcomm::shim {

inline thread_local int current_device = 0;
inline thread_local int runtime_device = 0;
inline thread_local std::vector<int> pushed_devices;
inline std::atomic<bool> contexts[64];  // a device each

/// Done by everything that needs a context, such as allocations and launches.
inline void need_context() { contexts[current_device] = true; }

/// cudaSetDevice, as it is since CUDA 12.
inline void set_device(int device) {
  runtime_device = current_device = device;
  if (!pushed_devices.empty()) pushed_devices.back() = device;  // it replaces the thread's context
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
