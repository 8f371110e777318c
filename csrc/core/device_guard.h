// Which device is current, and which was.
//
// Only in builds with FC_WITH_CUDA or FC_SHIM.
#pragma once

namespace fastcomm {

/// Makes a device current and, when destroyed, the previous one again. Within a guard cudaSetDevice may
/// be called freely. Where the device that was current has no context, none is created for it, unless
/// cudaSetDevice was called in between (core/cuda_context.h).
class DeviceGuard {
 public:
  DeviceGuard();
  explicit DeviceGuard(int device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

  /// Cheap where it is current already.
  void set(int device);

 private:
  void pop();

  int before_ = 0;
  int now_ = 0;
  bool moved_ = false;
  bool bare_ = false;    // contexts are pushed
  bool pushed_ = false;  // one is
};

}  // namespace fastcomm
