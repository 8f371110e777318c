// Memory of devices that other processes map, under the execution shim: all that handles refuse,
// and the data behind them.
//
//   shim_ipc_test [CASE [SEED]]    CASE: handles | data | ends
#include <dirent.h>
#include <sys/stat.h>

#include <cstring>
#include <set>
#include <string>

#include "ipc_world.h"
#include "random_values.h"

namespace fastcomm::testing {
namespace {

constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;

cudaIpcMemHandle_t handle_of(void* memory) {
  cudaIpcMemHandle_t handle;
  FC_CUDA(cudaIpcGetMemHandle(&handle, memory), "a test");
  return handle;
}
char* open(const cudaIpcMemHandle_t& handle) {
  void* memory = nullptr;
  FC_CUDA(cudaIpcOpenMemHandle(&memory, handle, kLazy), "a test");
  return static_cast<char*>(memory);
}
cudaError_t opened(const cudaIpcMemHandle_t& handle, unsigned flags = kLazy) {
  void* memory = nullptr;
  const cudaError_t result = cudaIpcOpenMemHandle(&memory, handle, flags);
  if (result != cudaSuccess) EXPECT(cudaGetLastError() == result, "the last error");
  return result;
}

/// Which memory has a handle, and whose.
void exporting() {
  cudaIpcMemHandle_t handle, again;
  char* const memory = device_memory(1000);
  void* pinned = nullptr;
  FC_CUDA(cudaHostAlloc(&pinned, 1000, 0), "a test");
  EXPECT(cudaIpcGetMemHandle(&handle, memory + 1) == cudaErrorInvalidValue, "not its base");
  EXPECT(cudaIpcGetMemHandle(&handle, pinned) == cudaErrorInvalidValue, "pinned memory");
  EXPECT(cudaIpcGetMemHandle(&handle, &again) == cudaErrorInvalidValue, "memory of the host");
  EXPECT(cudaIpcGetMemHandle(&handle, nullptr) == cudaErrorInvalidValue, "no memory");
  shim::Ipc::get().supported = false;
  EXPECT(cudaIpcGetMemHandle(&handle, memory) == cudaErrorNotSupported, "switched off");
  shim::Ipc::get().supported = true;
  handle = handle_of(memory);
  again = handle_of(memory);
  EXPECT(std::memcmp(&handle, &again, sizeof(handle)) == 0, "one handle an allocation");
  EXPECT(opened(handle) == cudaErrorDeviceUninitialized, "its own");
  FC_CUDA(cudaFree(memory), "a test");
  char* const same = device_memory(1000);
  EXPECT(same == memory, "the test wants the address again");
  again = handle_of(same);
  EXPECT(std::memcmp(&handle, &again, sizeof(handle)) != 0, "a handle of what was freed");
  FC_CUDA(cudaFree(same), "a test");
  static_cast<void>(cudaGetLastError());
}

CASE(handles) {
  run_ipc_ranks(1, [](const IpcRank&) { exporting(); });
  run_ipc_ranks(2, [](const IpcRank& self) {
    if (self.rank == 0) {
      char* const memory = device_memory(10000);
      self.send(1, handle_of(memory));
      self.receive<char>(1);
      char* const freed = device_memory(100);
      const cudaIpcMemHandle_t old = handle_of(freed);
      FC_CUDA(cudaFree(freed), "a test");
      self.send(1, old);
      self.receive<char>(1);
      handle_of(device_memory(100));  // in the slot of the old one
      self.send(1, old);
      self.receive<char>(1);
      FC_CUDA(cudaFree(memory), "closed everywhere");
      return;
    }
    const auto handle = self.receive<cudaIpcMemHandle_t>(0);
    EXPECT(opened(handle, 0) == cudaErrorInvalidValue, "flags");
    EXPECT(opened(cudaIpcMemHandle_t{}) == cudaErrorInvalidResourceHandle, "no handle");
    shim::Ipc::get().supported = false;
    EXPECT(opened(handle) == cudaErrorNotSupported, "switched off");
    shim::Ipc::get().supported = true;
    char* const memory = open(handle);
    EXPECT(open(handle) == memory, "twice, one mapping");
    FC_CUDA(cudaSetDevice(1), "a test");
    char* const of_another = open(handle);
    EXPECT(of_another != memory, "each device that opens it has its own");
    FC_CUDA(cudaIpcCloseMemHandle(of_another), "a test");
    FC_CUDA(cudaSetDevice(0), "a test");
    cudaIpcMemHandle_t own;
    EXPECT(cudaIpcGetMemHandle(&own, memory) == cudaErrorInvalidValue, "handed on");
    EXPECT(cudaFree(memory) == cudaErrorInvalidValue, "freed by who opened it");
    EXPECT(cudaIpcCloseMemHandle(memory + 1) == cudaErrorInvalidValue, "not its base");
    FC_CUDA(cudaIpcCloseMemHandle(memory), "once");
    memory[0] = 1;  // still there
    FC_CUDA(cudaIpcCloseMemHandle(memory), "as often as opened");
    EXPECT(cudaIpcCloseMemHandle(memory) == cudaErrorInvalidValue, "once too often");
    self.send(0, char{});
    EXPECT(opened(self.receive<cudaIpcMemHandle_t>(0)) == cudaErrorInvalidResourceHandle, "freed");
    self.send(0, char{});
    EXPECT(opened(self.receive<cudaIpcMemHandle_t>(0)) == cudaErrorInvalidResourceHandle,
           "another's by now");
    self.send(0, char{});
  });
  // No link: no mapping. The devices that can reach the exporter's, and what they see there.
  run_ipc_ranks(2, [](const IpcRank& self) {
    using shim::Link;
    if (self.rank == 0) {
      self.send(1, handle_of(device_memory(100)));
      self.receive<char>(1);
      return;
    }
    shim::Runtime::get().configure({{Link::kDirect, Link::kDirect}, {Link::kNone, Link::kDirect}});
    const auto handle = self.receive<cudaIpcMemHandle_t>(0);
    FC_CUDA(cudaSetDevice(1), "a test");
    EXPECT(opened(handle) == cudaErrorPeerAccessUnsupported, "no link");
    FC_CUDA(cudaSetDevice(0), "a test");
    char* const memory = open(handle);
    EXPECT(device_view(0, memory, Touch::kRead) == memory, "its own device's");
    bool refused = false;
    try {
      device_view(1, memory, Touch::kRead);
    } catch (const std::logic_error&) {
      refused = true;
    }
    EXPECT(refused, "a device without a link");
    self.send(0, char{});
  });
}

/// The others see what one writes, at small and large sizes, through their own streams.
CASE(data) {
  const auto body = [seed](const IpcRank& self) {
    cudaStream_t stream = nullptr;
    FC_CUDA(cudaStreamCreateWithFlags(&stream, 0), "a test");
    for (const size_t bytes : {1, 700, 4096, 5000, 3 << 20}) {
      std::vector<char> own = random_input(DType::kUInt8, bytes, seed + self.rank);
      device_memory(300);  // so that the next memory begins within a page
      char* const window = device_memory(bytes);
      FC_CUDA(cudaMemcpyAsync(window, own.data(), bytes, cudaMemcpyDefault, stream), "a test");
      FC_CUDA(cudaStreamSynchronize(stream), "a test");
      const auto handles = self.exchange(handle_of(window));
      for (int peer = 0; peer < self.size(); ++peer) {
        if (peer == self.rank) continue;
        char* const there = open(handles[peer]);
        std::vector<char> got(bytes);
        FC_CUDA(cudaMemcpyAsync(got.data(), there, bytes, cudaMemcpyDefault, stream), "a test");
        FC_CUDA(cudaStreamSynchronize(stream), "a test");
        EXPECT(got == random_input(DType::kUInt8, bytes, seed + peer), bytes, " bytes of ", peer);
        FC_CUDA(cudaIpcCloseMemHandle(there), "a test");
      }
      self.meet();
      FC_CUDA(cudaFree(window), "a test");
    }
  };
  run_ipc_ranks(3, body);
  run_ipc_ranks(3, body, /*hidden=*/true);
}

std::set<std::string> shared_files() {
  std::set<std::string> names;
  DIR* const folder = opendir("/dev/shm");
  while (const dirent* const entry = readdir(folder)) names.insert(entry->d_name);
  closedir(folder);
  return names;
}

/// An exporter that is killed: its memory stays for those who have it, its handles can no longer be
/// opened, and no file is left.
CASE(ends) {
  const std::set<std::string> before = shared_files();
  run_ipc_ranks(3, [](const IpcRank& self) {
    if (self.rank == 2) {
      const auto handle = self.receive<cudaIpcMemHandle_t>(0);
      self.receive<char>(1);
      EXPECT(opened(handle) == cudaErrorMapBufferObjectFailed, "of who has ended");
      return;
    }
    if (self.rank == 0) {
      char* const memory = device_memory(1000);
      memory[999] = 7;
      self.send(2, handle_of(memory));
      self.send(1, handle_of(memory));
      self.receive<char>(1);
      std::raise(SIGKILL);
    }
    const char* const memory = open(self.receive<cudaIpcMemHandle_t>(0));
    self.send(0, char{});
    char nothing;
    EXPECT(recv(self.socket(0), &nothing, 1, 0) <= 0, "rank 0 ends");
    EXPECT(memory[999] == 7, "who has it mapped keeps it");
    self.send(2, char{});
  });
  for (const std::string& name : shared_files()) {
    EXPECT(before.count(name) == 1 || name.find("device") == std::string::npos, name, " is left");
  }
  // A process that had it mapped is killed: it no longer counts.
  run_ipc_ranks(2, [](const IpcRank& self) {
    if (self.rank == 1) {
      open(self.receive<cudaIpcMemHandle_t>(0));
      self.send(0, char{});
      self.receive<char>(0);
      std::raise(SIGKILL);
    }
    char* const memory = device_memory(1000);
    char* const other = device_memory(1000);
    self.send(1, handle_of(memory));
    self.receive<char>(1);
    handle_of(other);
    FC_CUDA(cudaFree(other), "opened by nobody");
    expect_hazards({}, "freed");
    self.send(1, char{});
    char nothing;
    EXPECT(recv(self.socket(1), &nothing, 1, 0) <= 0, "rank 1 ends");
    FC_CUDA(cudaFree(memory), "a test");
    expect_hazards({}, "freed after the death");
  });
  run_ipc_ranks(2, [](const IpcRank& self) {
    if (self.rank == 1) {
      open(self.receive<cudaIpcMemHandle_t>(0));
      self.send(0, char{});
      self.receive<char>(0);
      return;
    }
    char* const memory = device_memory(1000);
    self.send(1, handle_of(memory));
    self.receive<char>(1);
    FC_CUDA(cudaFree(memory), "a test");
    expect_hazards({{"frees 1000 bytes", "another process has still mapped"}}, "freed too early");
    self.send(1, char{});
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
