// The CUDA runtime, or the execution shim in its place (FC_SHIM). CUDA sources include this and no
// CUDA header, and launch through FC_LAUNCH. It returns the launch's own error, for FC_CUDA to
// check (core/cuda_host.h distinguishes it from others' errors).
#pragma once

#if defined(FC_SHIM)
#include "shim/shim.h"
#else
#include <cuda_runtime.h>

/// An array that the threads of a block share.
#define FC_SHARED(type, name, count) __shared__ type name[count]

#define FC_LAUNCH(kernel, grid, block, stream, ...) \
  ::fastcomm::launch_kernel(kernel, grid, block, stream, __VA_ARGS__)

namespace fastcomm {

template <class T>
struct AsDeclared {
  using Type = T;
};

/// Enqueues a kernel with arguments of its declared types, and returns the launch's error:
/// kernel<<<...>>> leaves its error among those of others.
template <class... Parameters>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                          const typename AsDeclared<Parameters>::Type&... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, 0, stream);
}

}  // namespace fastcomm
#endif
