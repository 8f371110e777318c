// A guard that lets a thread use a device while other threads capture streams into graphs.
//
// Only in builds with FC_WITH_CUDA or FC_SHIM.
#pragma once

#include "core/cuda_host.h"
#include "core/device_guard.h"

namespace fastcomm {

/// Makes `device` current, and lets this thread allocate, free and query events while another one
/// captures a stream: otherwise CUDA would refuse, and that capture would fail. The calls of this
/// thread are part of no capture. A wait for a whole device is not made right by this.
///
/// The device comes first: CUDA makes a context on the current device when a thread changes its
/// mode, and the device that is current by default may be one that this process does not use.
class BesideCaptures {
 public:
  explicit BesideCaptures(int device) : guard_(device) { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  // Before the guard ends: the device that it restores may be one that this process does not use.
  ~BesideCaptures() { exchange(); }

 private:
  void exchange() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

  const DeviceGuard guard_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace fastcomm
