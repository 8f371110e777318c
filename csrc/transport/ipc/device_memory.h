// Windows in memory of the ranks' devices, mapped by handles of the runtime. The devices must have
// access to each other, and the host must let processes open each other's handles.
#pragma once

#include <map>

#include "transport/ipc/window_memory.h"

namespace fastcomm {

class DeviceMemory final : public WindowMemory {
 public:
  using WindowMemory::WindowMemory;

  char* make(uint64_t bytes) override;
  std::string handle() override;
  char* map(int peer, const std::string& handle) override;
  void unmap(int peer) override;
  void free() override;

 private:
  char* own_ = nullptr;
  std::map<int, char*> peers_;
};

}  // namespace fastcomm
