#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "transport/ipc/device_memory.h"

#include <utility>

#include "core/cuda_host.h"
#include "core/device_guard.h"

namespace fastcomm {
namespace {

// A handle names a whole allocation of the driver, which may be cut into smaller pieces.
constexpr uint64_t kHandleBytes = uint64_t{2} << 20;

}  // namespace

char* DeviceMemory::make(uint64_t bytes) {
  const DeviceGuard guard(device());
  bytes = (bytes + kHandleBytes - 1) / kHandleBytes * kHandleBytes;
  void* memory = nullptr;
  FC_CUDA(cudaMalloc(&memory, bytes), "a window of ", bytes, " bytes");
  own_ = static_cast<char*>(memory);
  enqueue_and_wait("a window's flags",
                   [&](cudaStream_t stream) { return cudaMemsetAsync(memory, 0, bytes, stream); });
  return own_;
}

std::string DeviceMemory::handle() {
  const DeviceGuard guard(device());
  cudaIpcMemHandle_t own;
  FC_CUDA(cudaIpcGetMemHandle(&own, own_), "a window for other processes");
  return {own.reserved, sizeof(own.reserved)};
}

char* DeviceMemory::map(int peer, const std::string& handle) {
  const auto theirs = read_handle<cudaIpcMemHandle_t>(peer, handle);
  const DeviceGuard guard(device());
  void* memory = nullptr;
  FC_CUDA(cudaIpcOpenMemHandle(&memory, theirs, cudaIpcMemLazyEnablePeerAccess),
          "the window of rank ", peer);
  return peers_[peer] = static_cast<char*>(memory);
}

void DeviceMemory::unmap(int peer) {
  const DeviceGuard guard(device());
  forget_error(cudaIpcCloseMemHandle(peers_.at(peer)));
  peers_.erase(peer);
}

void DeviceMemory::free() {
  const DeviceGuard guard(device());
  FC_CUDA(cudaFree(std::exchange(own_, nullptr)), "a window");
}

}  // namespace fastcomm
#endif
