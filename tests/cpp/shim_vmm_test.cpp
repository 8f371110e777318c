// Memory of devices that other processes map by file descriptors, under the execution shim.
//
//   shim_vmm_test [CASE [SEED]]    CASE: refused | shared | ends
#include <fcntl.h>
#include <sys/uio.h>

#include <cstring>

#include "ipc_world.h"
#include "shim/vmm.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kBytes = shim::Vmm::kGranularity;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
using Handle = CUmemGenericAllocationHandle;

CUmemAllocationProp prop_of(int device, CUmemAllocationHandleType type) {
  return {CU_MEM_ALLOCATION_TYPE_PINNED, type, {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}
#define DRIVER(call) EXPECT((call) == CUDA_SUCCESS, "a test")

Handle make(size_t bytes = kBytes, CUmemAllocationHandleType type = kDescriptor) {
  Handle handle = 0;
  const CUmemAllocationProp prop = prop_of(0, type);
  DRIVER(cuMemCreate(&handle, bytes, &prop, 0));
  return handle;
}
CUdeviceptr map(Handle handle, size_t bytes = kBytes) {
  CUdeviceptr at = 0;
  DRIVER(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  DRIVER(cuMemMap(at, bytes, 0, handle, 0));
  return at;
}
CUresult grant(CUdeviceptr at, int device, size_t bytes = kBytes) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return cuMemSetAccess(at, bytes, &access, 1);
}
char* pointer(CUdeviceptr at) { return reinterpret_cast<char*>(at); }

/// Whether a kernel on the device would raise.
bool illegal(int device, CUdeviceptr at) {
  try {
    device_view(device, pointer(at), Touch::kRead);
  } catch (const std::logic_error&) {
    return true;
  }
  return false;
}

CUresult imported(int file, Handle* handle) {
  return cuMemImportFromShareableHandle(
      handle, reinterpret_cast<void*>(static_cast<intptr_t>(file)), kDescriptor);
}

CASE(refused) {
  run_ipc_ranks(1, [](const IpcRank&) {
    constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
    Handle handle = 0;
    int file = -1;
    CUmemAllocationProp prop = prop_of(0, kDescriptor);
    shim::Vmm::get().supported = false;
    EXPECT(cuMemCreate(&handle, kBytes, &prop, 0) == CUDA_ERROR_NOT_SUPPORTED, "switched off");
    shim::Vmm::get().supported = true;
    EXPECT(cuMemCreate(&handle, 4096, &prop, 0) == kInvalid, "no multiple");
    prop = prop_of(2, kDescriptor);
    EXPECT(cuMemCreate(&handle, kBytes, &prop, 0) == kInvalid, "no such device");
    const Handle kept = make(kBytes, CU_MEM_HANDLE_TYPE_NONE);
    EXPECT(cuMemExportToShareableHandle(&file, kept, kDescriptor, 0) == kInvalid,
           "not made for it");
    void* allocated = nullptr;
    FC_CUDA(cudaMalloc(&allocated, kBytes), "a test");
    EXPECT(cuMemRetainAllocationHandle(&handle, allocated) == kInvalid, "cudaMalloc's");
    CUdeviceptr base = 0;
    size_t bytes = 0;
    DRIVER(cuMemGetAddressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(allocated) + 100));
    EXPECT(pointer(base) == allocated && bytes == kBytes, "where it begins");
    EXPECT(cuMemGetAddressRange(&base, &bytes, 4096) == CUDA_ERROR_NOT_FOUND, "nobody's");
    handle = make();
    const CUdeviceptr at = map(handle);
    EXPECT(cuMemMap(at, kBytes, 0, kept, 0) == kInvalid, "taken");
    EXPECT(cuMemMap(at, kBytes / 2, 0, kept, 0) == kInvalid, "a part");
    EXPECT(cuMemMap(reinterpret_cast<CUdeviceptr>(allocated), kBytes, 0, kept, 0) == kInvalid,
           "addresses that nobody reserved");
    EXPECT(cuMemAddressFree(at, kBytes) == kInvalid, "mapped");
    EXPECT(cudaFree(pointer(at)) == cudaErrorInvalidValue, "not cudaMalloc's");
    cudaIpcMemHandle_t ipc;
    EXPECT(cudaIpcGetMemHandle(&ipc, pointer(at)) == cudaErrorInvalidValue, "no handle of cudaIpc");
    EXPECT(illegal(0, at), "no access was granted");
    DRIVER(grant(at, 0));
    EXPECT(!illegal(0, at) && illegal(1, at), "granted to one");
    EXPECT(grant(at, 5) == kInvalid && grant(at, 0, kBytes / 2) == kInvalid, "to nobody, in part");
    EXPECT(imported(0, &handle) == kInvalid && imported(-1, &handle) == kInvalid, "no memory");
    const int other = memfd_create("other", 0);
    EXPECT(ftruncate(other, kBytes + shim::kLedgerBytes) == 0, "a test");
    EXPECT(imported(other, &handle) == kInvalid, "another file of that size");
    DRIVER(cuMemUnmap(at, kBytes));
    EXPECT(cuMemUnmap(at, kBytes) == kInvalid, "twice");
    DRIVER(cuMemAddressFree(at, kBytes));
    DRIVER(cuMemRelease(kept));
    EXPECT(cuMemRelease(kept) == kInvalid, "released twice");
    static_cast<void>(cudaGetLastError());
  });
}

void send_file(int socket, int file) {
  char byte = 0;
  struct iovec data = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(file))] = {};
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  struct cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(file));
  std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  EXPECT(sendmsg(socket, &message, 0) == 1, "a test");
}
int receive_file(int socket) {
  char byte = 0;
  struct iovec data = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  EXPECT(recvmsg(socket, &message, 0) == 1, "a test");
  int file = -1;
  std::memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
  return file;
}

/// The descriptor travels; both sides write and read, and what nothing orders is reported.
CASE(shared) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    cudaStream_t stream = nullptr;
    FC_CUDA(cudaStreamCreateWithFlags(&stream, 0), "a test");
    const auto set = [&](CUdeviceptr at, size_t bytes) {
      FC_CUDA(cudaMemsetAsync(pointer(at), self.rank + 1, bytes, stream), "a test");
      FC_CUDA(cudaStreamSynchronize(stream), "a test");
    };
    Handle handle = 0;
    if (self.rank == 0) {
      handle = make(2 * kBytes);
    } else {
      const int file = receive_file(self.socket(0));
      DRIVER(imported(file, &handle));
      close(file);
    }
    const CUdeviceptr at = map(handle, 2 * kBytes);
    DRIVER(grant(at, 0, 2 * kBytes));
    if (self.rank == 0) {
      Handle again = 0;
      DRIVER(cuMemRetainAllocationHandle(&again, pointer(at) + kBytes));
      EXPECT(again == handle, "the same handle");
      DRIVER(cuMemRelease(again));
      set(at, 100);
      int file = -1;
      DRIVER(cuMemExportToShareableHandle(&file, handle, kDescriptor, 0));
      send_file(self.socket(1), file);
      close(file);
      self.meet();
    } else {
      EXPECT(pointer(at)[99] == 1, "what was there before");
      set(at, 100);
      set(at + 2 * kBytes - 100, 100);
      self.meet();
    }
    expect_hazards({}, "the descriptor orders");
    self.meet();
    if (self.rank == 0) {
      EXPECT(pointer(at)[2 * kBytes - 1] == 2, "what the importer wrote");
      set(at + 50, 10);
      expect_hazards({{"cudaMemsetAsync", "writes 10 bytes at 50", "nothing orders"}}, "no order");
    }
    self.meet();
    DRIVER(cuMemUnmap(at, 2 * kBytes));
    DRIVER(cuMemAddressFree(at, 2 * kBytes));
    DRIVER(cuMemRelease(handle));
  });
}

/// The memory's maker is killed: whoever holds a descriptor still has the memory.
CASE(ends) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    if (self.rank == 0) {
      const Handle handle = make();
      pointer(map(handle))[7] = 7;
      int file = -1;
      DRIVER(cuMemExportToShareableHandle(&file, handle, kDescriptor, 0));
      send_file(self.socket(1), file);
      self.receive<char>(1);
      std::raise(SIGKILL);
    }
    const int file = receive_file(self.socket(0));
    self.send(0, char{});
    char nothing;
    EXPECT(recv(self.socket(0), &nothing, 1, 0) <= 0, "rank 0 ends");
    Handle handle = 0;
    DRIVER(imported(file, &handle));
    const CUdeviceptr at = map(handle);
    DRIVER(cuMemRelease(handle));
    EXPECT(pointer(at)[7] == 7, "kept by a descriptor, and by a mapping");
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
