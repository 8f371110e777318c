// The devices that this library's kernels serve, as torch sees them: CUDA, or in builds on the
// execution shim (FC_SHIM) the simulated accelerator of tests, a PrivateUse1 device type of torch.
// Code above the CUDA runtime uses devices, streams and memory through this header and torch's
// generic classes (c10::DeviceGuard, c10::StreamGuard, c10::Event), and so is the same on both.
//
// FC_DEVICES is defined if there are kernels for devices. Without them the type is CUDA too: its
// tensors go to torch's own functions. Functions without a generic form in torch are implemented
// once for each: for CUDA in tensors/accelerator_cuda.cpp, for a simulation by the simulation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>

#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#define FC_DEVICES 1
#include <ATen/ops/record_stream_ops.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/control.h"
#include "core/cuda_host.h"
#endif

/// torch's dispatch key of these devices, for TORCH_LIBRARY_IMPL.
#if defined(FC_SHIM)
#define FC_ACCELERATOR_KEY PrivateUse1
#else
#define FC_ACCELERATOR_KEY CUDA
#endif

namespace fastcomm {

#if defined(FC_SHIM)
constexpr at::DeviceType kAccelerator = at::kPrivateUse1;
#else
constexpr at::DeviceType kAccelerator = at::kCUDA;
#endif

inline bool is_on_accelerator(const at::Tensor& tensor) {
  return tensor.device().type() == kAccelerator;
}

inline at::Device accelerator_device(int64_t index) {
  return at::Device(kAccelerator, static_cast<at::DeviceIndex>(index));
}

#if defined(FC_DEVICES)

/// The calling thread's current stream.
inline c10::Stream current_stream(int device) {
  return c10::impl::VirtualGuardImpl(kAccelerator).getStream(accelerator_device(device));
}

inline cudaStream_t native_stream(const c10::Stream& stream) {
  return static_cast<cudaStream_t>(stream.native_handle());
}

/// Keeps memory that was allocated for another stream from reuse until `stream` has done all work
/// that it was given before the memory is freed.
inline void record_use(const at::Tensor& tensor, const c10::Stream& stream) {
  if (FC_LEFT_OUT(Control::kForgetUse)) return;
  // Through the dispatcher, for memory of groups' pools (c10d/engines/cuda/record_stream.cpp).
  constexpr c10::DispatchKeySet kBelowPython(
      {c10::DispatchKey::BackendSelect, c10::DispatchKey::FC_ACCELERATOR_KEY});
  at::Tensor used = tensor;
  at::_ops::record_stream::redispatch(kBelowPython, used, stream);
}

// Each has one implementation per accelerator.

/// Lets kernels of `device` reach torch's memory on `peer`, now and later; their access to each
/// other is enabled already. Returns false, with the reason, if torch's allocator cannot do this:
/// then nothing has failed, and data goes through the host. Never raises.
bool map_for_peers(int device, int peer, std::string& why_not);

/// The capture into a graph that a stream is part of, by a number of its own in this process; 0:
/// none.
uint64_t capture_of(const c10::Stream& stream);
inline bool is_capturing(int device) { return capture_of(current_stream(device)) != 0; }

/// The name that the device's maker gives it.
std::string device_name(int device);

/// True if the device drives a display: then the driver ends a kernel that takes longer than some
/// seconds, and with it the process's use of the device.
inline bool ends_long_kernels(int device) {
  int limited = 0;
  forget_error(cudaDeviceGetAttribute(&limited, cudaDevAttrKernelExecTimeout, device));
  return limited != 0;
}

#endif

}  // namespace fastcomm
