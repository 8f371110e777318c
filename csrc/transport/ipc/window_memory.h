// Kinds of memory for the windows of ranks (transport/ipc/windows.h): memory of one rank, which its
// peers map.
//
//   DeviceMemory   of the rank's device (transport/ipc/device_memory.h), by the runtime's handles:
//                  for devices that reach each other
//   VirtualMemory  likewise (transport/ipc/virtual_memory.h), by the driver's descriptors or fabric
//                  handles
//   PinnedMemory   of the host (transport/ipc/pinned_memory.h): every device reaches it
//
// Only in builds with FC_WITH_CUDA or FC_SHIM.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"

namespace fastcomm {

/// A handle that rank `peer` has sent. Raises Error(kInvalidArgument) if `bytes` are not the bytes
/// of a Handle.
template <class Handle>
Handle read_handle(int peer, const std::string& bytes) {
  Handle handle;
  FC_CHECK(bytes.size() == sizeof(handle), "rank ", peer, " has sent a handle of ", bytes.size(),
           " bytes");
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  return handle;
}

/// One thread at a time. If destroyed before free(), it leaks the memory: peers may have it mapped.
class WindowMemory {
 public:
  explicit WindowMemory(int device) : device_(device) {}
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;
  virtual ~WindowMemory() = default;

  /// The device that uses this rank's window and its peers'. All addresses are that device's.
  int device() const { return device_; }

  /// Allocates this rank's window: zero, and aligned to 256 bytes. Raises Error(kSystem).
  virtual char* make(uint64_t bytes) = 0;
  /// The handle by which peers find the window. Raises Error(kSystem).
  virtual std::string handle() = 0;
  /// True if peers need more than the handle: each rank then gives it, to all, and the hosts
  /// exchange the outcome before any rank maps. The same on all ranks.
  virtual bool gives() const { return false; }
  /// Never waits for a peer. An empty handle belongs to a rank without memory. Raises
  /// Error(kSystem).
  virtual void give(int /*rank*/, const std::vector<std::string>& /*handles*/) {}
  /// Maps a peer's window. Raises Error(kSystem) if it cannot be reached, Error(kInvalidArgument)
  /// if the handle is none.
  virtual char* map(int peer, const std::string& handle) = 0;
  /// Unmaps a peer's window, which nothing uses any more. Raises Error(kSystem) if the device is
  /// gone.
  virtual void unmap(int peer) = 0;
  /// Frees this rank's memory, which no peer has mapped, and nothing on its device uses, any more.
  /// Does not wait for the device, where a stream may be captured. Raises Error(kSystem), and then
  /// may be called again.
  virtual void free() = 0;

 private:
  const int device_;
};

}  // namespace fastcomm
