#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "core/cuda_host.h"

namespace fastcomm {

DeviceGuard::DeviceGuard() {
  FC_CUDA(cudaGetDevice(&before_), "which device is current");
  now_ = before_;
}

DeviceGuard::DeviceGuard(int device) : DeviceGuard() { set(device); }

DeviceGuard::~DeviceGuard() {
  // Fails only where nothing works any more, as while the process ends.
  if (now_ != before_) static_cast<void>(cudaSetDevice(before_));
}

void DeviceGuard::set(int device) {
  if (device == now_) return;
  FC_CUDA(cudaSetDevice(device), "to make device ", device, " current");
  now_ = device;
}

}  // namespace fastcomm
#endif
