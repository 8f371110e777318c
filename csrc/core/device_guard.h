// A guard of the current device.
//
// Only in builds with FC_WITH_CUDA or FC_SHIM.
#pragma once

namespace fastcomm {

/// Makes a device current, and restores the previous one when destroyed. cudaSetDevice may be
/// called freely within a guard. If the previous device has no context, none is created for it,
/// unless cudaSetDevice was called in between (core/cuda_context.h).
class DeviceGuard {
 public:
  DeviceGuard();
  explicit DeviceGuard(int device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

  /// Cheap if it is current already.
  void set(int device);

 private:
  void pop();

  int before_ = 0;
  int now_ = 0;
  bool moved_ = false;
  bool bare_ = false;    // contexts are pushed
  bool pushed_ = false;  // a context is pushed now
};

}  // namespace fastcomm
