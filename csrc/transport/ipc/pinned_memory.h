// Windows in pinned memory of the host, for devices that do not reach each other's memory: consumer
// cards, virtual machines, containers in which handles of device memory cannot be opened.
//
// A window lies in the rank's own segment, which its peers have mapped since their group was formed
// (transport/shm/segment.h). Every process registers its own window and its peers' with its device.
// Another device sees a device's stores to such memory in the order of its flags: CUDA promises
// this for mapped memory at system scope, the scope of every flag here.
#pragma once

#include <map>
#include <memory>

#include "transport/ipc/window_memory.h"
#include "transport/shm/shared_buffer.h"
#include "transport/transport.h"

namespace fastcomm {

class PinnedMemory final : public WindowMemory {
 public:
  /// `transport` belongs to the ranks, and must outlive the mappings; `endpoint` is this process's.
  PinnedMemory(int device, Endpoint& endpoint, const Transport& transport)
      : WindowMemory(device), endpoint_(endpoint), transport_(transport) {}
  ~PinnedMemory() override { static_cast<void>(own_.release()); }

  /// Also raises Error(kSystem) if the segment is full (FASTCOMM_SEGMENT_MB).
  char* make(uint64_t bytes) override;
  std::string handle() override;
  char* map(int peer, const std::string& handle) override;
  void unmap(int peer) override;
  void free() override;

 private:
  /// Lets the device use the memory; returns its address there.
  char* pin(char* memory, const std::string& what) const;

  Endpoint& endpoint_;
  const Transport& transport_;
  uint64_t bytes_ = 0;
  std::unique_ptr<SharedBuffer> own_;
  bool pinned_ = false;
  std::map<int, char*> peers_;  // on the host
};

}  // namespace fastcomm
