// Windows in memory of the ranks' devices that the driver makes, exports and maps (virtual memory
// management), unlike cudaMalloc's. Two ways to export it:
//
//   descriptor  a file descriptor, sent to each peer over a Unix socket
//               (transport/shm/descriptors.h): if processes may not open each other's handles, as
//               in containers with their own PIDs
//   fabric      64 bytes that any process may open if the fabric manager lets it: if neither
//               handles nor descriptors work, on boxes with NVLink switches
//
// A handle of rank r contains the number of bytes; for a descriptor also r's listener, and a random
// number to show when connecting there. Each rank sends its descriptor to all listeners; the hosts
// tell each other that they have; then each takes one descriptor per peer out of its own listener.
//
// Memory is mapped whole. Its maker releases it right after that: it lives as long as any process
// has it mapped.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/cuda_driver.h"
#include "transport/ipc/window_memory.h"
#include "transport/shm/descriptors.h"

namespace fastcomm {

class VirtualMemory final : public WindowMemory {
 public:
  VirtualMemory(int device, CUmemAllocationHandleType type) : WindowMemory(device), type_(type) {}

  char* make(uint64_t bytes) override;
  std::string handle() override;
  bool gives() const override { return type_ == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; }
  void give(int rank, const std::vector<std::string>& handles) override;
  char* map(int peer, const std::string& handle) override;
  void unmap(int peer) override;
  void free() override;

 private:
  struct Mapped {
    CUdeviceptr at = 0;
    uint64_t bytes = 0;
  };
  struct Ticket;

  static Ticket read(int peer, const std::string& handle);
  CUmemAllocationProp properties() const;
  /// Reserves addresses and maps the memory there, for this rank's device.
  Mapped mapped(CUmemGenericAllocationHandle memory, uint64_t bytes, const std::string& what) const;
  static void unmap(const Mapped& mapped);
  /// Lets the process's other devices copy from and to this rank's memory, as they may with
  /// cudaMalloc's.
  void grant_others();
  /// The descriptor that rank `peer` has sent.
  Fd descriptor_of(int peer);

  const CUmemAllocationHandleType type_;
  Mapped own_;
  Fd exported_;
  CUmemFabricHandle fabric_{};
  uint64_t nonce_ = 0;
  std::unique_ptr<Listener> listener_;  // until all have been mapped
  size_t awaited_ = 0;
  std::map<int, Fd> came_;  // received, and not mapped yet
  std::map<int, Mapped> peers_;
};

}  // namespace fastcomm
