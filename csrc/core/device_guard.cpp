#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "core/device_guard.h"

#include "core/cuda_context.h"
#include "core/cuda_host.h"

namespace fastcomm {
namespace {

thread_local int contexts_pushed = 0;  // by living guards

}  // namespace

DeviceGuard::DeviceGuard() {
  FC_CUDA(cudaGetDevice(&before_), "which device is current");
  now_ = before_;
}

DeviceGuard::DeviceGuard(int device) : DeviceGuard() { set(device); }

DeviceGuard::~DeviceGuard() {
  if (pushed_) {
    pop();
    // Otherwise cudaSetDevice was called in between, and changed the context below the pushed one.
    int device = before_;
    static_cast<void>(cudaGetDevice(&device));
    now_ = device;
  }
  // Fails only if nothing works any more, such as at the end of the process.
  if (now_ != before_) static_cast<void>(cudaSetDevice(before_));
}

void DeviceGuard::set(int device) {
  if (device == now_) return;
  if (!moved_) bare_ = contexts_pushed > 0 || !has_context(before_);
  moved_ = true;
  if (bare_) {  // cudaSetDevice would rule out a way back without it
    if (pushed_) pop();
    if (device == before_) return;
    if (push_context(device)) {
      pushed_ = true;
      ++contexts_pushed;
      now_ = device;
      return;
    }
  }
  FC_CUDA(cudaSetDevice(device), "to make device ", device, " current");
  now_ = device;
}

void DeviceGuard::pop() {
  pop_context();
  --contexts_pushed;
  pushed_ = false;
  now_ = before_;
}

}  // namespace fastcomm
#endif
