// Memory of the device for the benchmarks of kernels, with random values in it: memory and
// processors run slower on those than on zeros. On the host under the execution shim, too.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "kernels/cuda_api.h"

namespace fastcomm::benchmarks {

#if defined(FC_SHIM)
constexpr int kFillers = 1, kFillThreads = 2;
#else
constexpr int kFillers = 1024, kFillThreads = 256;
#endif

inline void must(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(result));
  std::exit(1);
}

/// Words that are finite, of either sign and between 0.5 and 2 as fp32, and below 2 as bf16 and
/// fp16.
__global__ void fill_random(uint32_t* words, uint64_t count, uint32_t seed) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15u + seed;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    words[i] = (static_cast<uint32_t>(bits >> 32) & 0x80ff80ffu) | 0x3f003f00u;
  }
}

/// Memory of the device, filled with random values.
using Memory = std::unique_ptr<char, void (*)(char*)>;

inline Memory random_memory(uint64_t bytes, uint32_t seed) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes), "cudaMalloc");
  FC_LAUNCH(fill_random, kFillers, kFillThreads, nullptr, static_cast<uint32_t*>(memory),
            bytes / sizeof(uint32_t), seed);
  must(cudaGetLastError(), "fill_random");
  return {static_cast<char*>(memory), [](char* old) { static_cast<void>(cudaFree(old)); }};
}

}  // namespace fastcomm::benchmarks
