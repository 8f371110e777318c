// Where the windows of ranks lie (transport/ipc/windows.h): memory of one rank, which its peers map.
//
//   DeviceMemory   of the rank's device (transport/ipc/device_memory.h), by the runtime's handles: the
//                  devices reach each other
//   VirtualMemory  likewise (transport/ipc/virtual_memory.h), by the driver's descriptors or fabric handles
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

/// A handle that rank `peer` has sent: the bytes of a Handle. Raises Error(kInvalidArgument) for other bytes.
template <class Handle>
Handle read_handle(int peer, const std::string& bytes) {
  Handle handle;
  FC_CHECK(bytes.size() == sizeof(handle), "rank ", peer, " has sent a handle of ", bytes.size(),
           " bytes");
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  return handle;
}

/// One thread at a time. If destroyed before free(), it keeps the memory: peers may have it mapped.
class WindowMemory {
 public:
  explicit WindowMemory(int device) : device_(device) {}
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;
  virtual ~WindowMemory() = default;

  /// The device that uses this rank's window and its peers'. Addresses are that device's.
  int device() const { return device_; }

  /// Allocates this rank's window: zero, and aligned to 256 bytes. Raises Error(kSystem).
  virtual char* make(uint64_t bytes) = 0;
  /// How peers find it. Raises Error(kSystem).
  virtual std::string handle() = 0;
  /// Whether peers need more than the handle: then each rank gives it, to all, and the hosts tell each other how
  /// that went before any rank maps. The same on all ranks.
  virtual bool gives() const { return false; }
  /// Never waits for a peer; an empty handle is from a rank without memory. Raises Error(kSystem).
  virtual void give(int /*rank*/, const std::vector<std::string>& /*handles*/) {}
  /// Maps a peer's. Raises Error(kSystem): it cannot be reached; (kInvalidArgument): no handle.
  virtual char* map(int peer, const std::string& handle) = 0;
  /// Nothing uses it any more. Raises Error(kSystem) where the device is gone.
  virtual void unmap(int peer) = 0;
  /// No peer has this rank's memory mapped any more. Waits for the device, if it is the device's: streams may
  /// still read a tensor that lay there. Raises Error(kSystem), and then may be called again.
  virtual void free() = 0;

 private:
  const int device_;
};

}  // namespace fastcomm
