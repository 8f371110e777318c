#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "transport/ipc/pinned_memory.h"

#include <utility>

#include "core/cuda_host.h"
#include "core/device_guard.h"

namespace fastcomm {

char* PinnedMemory::pin(char* memory, const std::string& what) const {
  const DeviceGuard guard(device());
  FC_CUDA(cudaHostRegister(memory, bytes_, cudaHostRegisterPortable | cudaHostRegisterMapped), what,
          ", ", bytes_, " bytes of shared memory");
  void* there = nullptr;
  const cudaError_t found = cudaHostGetDevicePointer(&there, memory, 0);
  if (found != cudaSuccess) forget_error(cudaHostUnregister(memory));
  FC_CUDA(found, what);
  return static_cast<char*>(there);
}

char* PinnedMemory::make(uint64_t bytes) {
  bytes_ = bytes;
  own_ = std::make_unique<SharedBuffer>(endpoint_, bytes);
  char* const there = pin(static_cast<char*>(own_->data()), "this rank's window");
  pinned_ = true;
  return there;
}

std::string PinnedMemory::handle() {
  const uint64_t where = transport_.locate(own_->data(), bytes_);
  FC_CHECK(where != kNotShared, "the ranks of this group share no memory");
  return {reinterpret_cast<const char*>(&where), sizeof(where)};
}

char* PinnedMemory::map(int peer, const std::string& handle) {
  const auto where = read_handle<uint64_t>(peer, handle);
  char* const memory = transport_.reach(peer, where, bytes_);
  FC_CHECK(memory != nullptr, "rank ", peer, " has no window at ", where);
  char* const there = pin(memory, concat("the window of rank ", peer));
  peers_[peer] = memory;
  return there;
}

void PinnedMemory::unmap(int peer) {
  const DeviceGuard guard(device());
  forget_error(cudaHostUnregister(peers_.at(peer)));
  peers_.erase(peer);
}

void PinnedMemory::free() {
  const DeviceGuard guard(device());
  if (std::exchange(pinned_, false)) forget_error(cudaHostUnregister(own_->data()));
  own_.reset();
}

}  // namespace fastcomm
#endif
