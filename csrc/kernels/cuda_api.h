// The CUDA runtime, or the execution shim in its place (FC_SHIM). CUDA sources include this and no
// CUDA header, and launch through FC_LAUNCH.
#pragma once

#if defined(FC_SHIM)
#include "kernels/shim/shim.h"
#else
#include <cuda_runtime.h>

/// An array that the threads of a block share.
#define FC_SHARED(type, name, count) __shared__ type name[count]

#define FC_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif
