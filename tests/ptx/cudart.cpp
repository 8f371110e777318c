// The CUDA runtime under the names that nvcc's host code links to, over the simulated devices of
// tests/shim; a launch executes the PTX of its kernel.
//
//   FC_PTX           the files of PTX, with ':' between them
//   FC_PTX_SEED      of the schedules; 0: threads take turns in order
//   FC_PTX_DEVICES   how many there are; 2 unless told
//
// Memory of devices is hidden: only what runs on them reaches it. Each allocation is followed by
// bytes that kernels must not touch, as they must not touch anything that has not been allocated.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <sstream>
#include <unordered_map>

#include "machine.h"
#include "shim/arena.h"
#include "shim/ipc.h"
#include "shim/vmm.h"
#include "shim/vmm_api.h"

struct dim3 {
  unsigned x, y, z;
};

namespace fastcomm::ptx {
namespace {

constexpr size_t kRedZone = 64;

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "PTX: %s\n", what.c_str());
  std::fflush(stderr);
  std::abort();
}

/// The names of kernels, by what host code calls them.
std::unordered_map<const void*, std::string>& kernels() {
  static auto& all = *new std::unordered_map<const void*, std::string>;
  return all;
}

std::deque<Program> read_programs() {
  std::deque<Program> programs;
  std::istringstream files(std::getenv("FC_PTX") == nullptr ? "" : std::getenv("FC_PTX"));
  for (std::string name; std::getline(files, name, ':');) {
    std::ifstream file(name);
    if (!file) give_up("cannot read " + name);
    std::ostringstream text;
    text << file.rdbuf();
    programs.emplace_back(text.str());
  }
  return programs;
}

const Function& kernel_of(const void* host) {
  static auto& programs = *new std::deque<Program>(read_programs());
  const auto name = kernels().find(host);
  if (name == kernels().end()) give_up("a launch of no kernel");
  for (Program& each : programs) {
    if (each.has(name->second)) return each.function(name->second);
  }
  give_up("FC_PTX names no file with the kernel " + name->second);
}

/// Devices that reach each other, once per process: ranks are forked before they use any.
void set_up() {
  [[maybe_unused]] static const bool once = [] {
    shim::Arena::Options options;
    options.hidden = true;
#if defined(__SANITIZE_THREAD__)
    options.bytes = options.imports = size_t{1} << 29;  // it keeps several bytes for each
#endif
    shim::Arena::get(options);
    shim::Runtime& runtime = shim::Runtime::get();
    runtime.set_memory_source(shim::Arena::source());
    const size_t devices = number_of("FC_PTX_DEVICES", 2);
    const std::vector<shim::Link> direct(devices, shim::Link::kDirect);
    runtime.configure(std::vector<std::vector<shim::Link>>(devices, direct),
                      static_cast<int>(number_of("CUDA_DEVICE_MAX_CONNECTIONS", 0)));
    shim::Vmm::get().fabric = true;
    return true;
  }();
}

void allocated(const void* memory, size_t bytes) {
  add_range(memory, bytes, shim::Runtime::get().on_host(memory));
}

cudaError_t launch(const void* host, const dim3& grid, const dim3& block, void** arguments,
                   cudaStream_t stream) {
  static std::atomic<uint64_t> launches{0};
  const Function* kernel = nullptr;
  try {
    kernel = &kernel_of(host);
  } catch (const Unknown& error) {
    give_up(error.what());
  }
  if (grid.y * grid.z * block.y * block.z != 1 || grid.x == 0 || block.x > kernel->most_threads) {
    return shim::fail(cudaErrorInvalidValue);
  }
  uint64_t seed = number_of("FC_PTX_SEED", 1);
  if (seed != 0) seed = seed * 0x9e3779b97f4a7c15u + launches++;
  Launch made{kernel, block.x, grid.x, seed, nullptr};
  made.parameters.reset(new char[kernel->parameter_bytes + 16]);
  for (size_t i = 0; i < kernel->parameters.size(); ++i) {
    const Variable& each = kernel->parameters[i];
    std::memcpy(made.parameters.get() + each.offset, arguments[i], each.bytes);
  }
  return shim::submit(stream, kernel->name.c_str(), {}, [made] { run_grid(made); });
}

}  // namespace
}  // namespace fastcomm::ptx

using namespace fastcomm;

/// A function of the runtime as the shim has it.
#define FC_EXPORT(name, parameters, arguments)            \
  extern "C" cudaError_t fc_##name parameters asm(#name); \
  cudaError_t fc_##name parameters {                      \
    ptx::set_up();                                        \
    return ::name arguments;                              \
  }
/// With a body of its own.
#define FC_DEFINE(name, parameters)                       \
  extern "C" cudaError_t fc_##name parameters asm(#name); \
  cudaError_t fc_##name parameters

// Programs tell the runtime their kernels before main().
extern "C" {
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  ptx::kernels()[host] = name;
}
// Only kernel<<<...>>> calls these; launches here name a function (FC_LAUNCH).
int __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { ptx::give_up("kernel<<<...>>>"); }
int __cudaGetKernel(void**, const void*) { ptx::give_up("kernel<<<...>>>"); }
int __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, void*) {
  ptx::give_up("kernel<<<...>>>");
}
const char* fc_cudaGetErrorString(cudaError_t error) asm("cudaGetErrorString");
const char* fc_cudaGetErrorString(cudaError_t error) { return ::cudaGetErrorString(error); }
}

FC_DEFINE(cudaLaunchKernel, (const void* kernel, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream)) {
  ptx::set_up();
  if (shared != 0) return shim::fail(cudaErrorInvalidValue);
  return ptx::launch(kernel, grid, block, arguments, stream);
}
FC_DEFINE(cudaFuncGetAttributes, (void*, const void* kernel)) {
  static_cast<void>(ptx::kernel_of(kernel));
  return cudaSuccess;
}
FC_DEFINE(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
          (int* blocks, const void*, int, size_t, unsigned)) {
  *blocks = 1;
  return cudaSuccess;
}

// Memory, and who may use it.
FC_DEFINE(cudaMalloc, (void** memory, size_t bytes)) {
  ptx::set_up();
  const cudaError_t result = ::cudaMalloc(memory, bytes + ptx::kRedZone);
  if (result == cudaSuccess) ptx::allocated(*memory, bytes);
  return result;
}
FC_DEFINE(cudaHostAlloc, (void** memory, size_t bytes, unsigned flags)) {
  ptx::set_up();
  const cudaError_t result = ::cudaHostAlloc(memory, bytes + ptx::kRedZone, flags);
  if (result == cudaSuccess) ptx::allocated(*memory, bytes);
  return result;
}
FC_DEFINE(cudaHostRegister, (void* memory, size_t bytes, unsigned flags)) {
  ptx::set_up();
  const cudaError_t result = ::cudaHostRegister(memory, bytes, flags);
  if (result == cudaSuccess) ptx::allocated(memory, bytes);
  return result;
}
FC_DEFINE(cudaFree, (void* memory)) {
  ptx::set_up();
  const cudaError_t waited = ::cudaDeviceSynchronize();
  ptx::remove_range(memory);
  const cudaError_t result = ::cudaFree(memory);
  return waited == cudaSuccess ? result : waited;
}
FC_DEFINE(cudaFreeHost, (void* memory)) {
  ptx::remove_range(memory);
  return ::cudaFreeHost(memory);
}
FC_DEFINE(cudaHostUnregister, (void* memory)) {
  ptx::remove_range(memory);
  return ::cudaHostUnregister(memory);
}
FC_DEFINE(cudaIpcOpenMemHandle, (void** memory, cudaIpcMemHandle_t handle, unsigned flags)) {
  ptx::set_up();
  const cudaError_t result = ::cudaIpcOpenMemHandle(memory, handle, flags);
  if (result == cudaSuccess) {
    ptx::allocated(*memory, shim::Runtime::get().find(*memory)->bytes - ptx::kRedZone);
  }
  return result;
}
FC_DEFINE(cudaIpcCloseMemHandle, (void* memory)) {
  ptx::remove_range(memory);
  return ::cudaIpcCloseMemHandle(memory);
}
FC_DEFINE(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind)) {
  ptx::set_up();
  const cudaError_t result = ::cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return result == cudaSuccess ? ::cudaStreamSynchronize(nullptr) : result;
}
FC_EXPORT(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void* memory), (handle, memory))
FC_EXPORT(cudaHostGetDevicePointer, (void** there, void* memory, unsigned flags),
          (there, memory, flags))
FC_EXPORT(cudaMemcpyAsync,
          (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
          (to, from, bytes, kind, stream))
FC_EXPORT(cudaMemsetAsync, (void* to, int value, size_t bytes, cudaStream_t stream),
          (to, value, bytes, stream))

// Memory of the driver, by names that are asked for.
namespace {

CUresult map_memory(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const CUresult result = ::cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) ptx::allocated(shim::address_of_device(address), bytes);
  return result;
}
CUresult unmap_memory(CUdeviceptr address, size_t bytes) {
  ptx::remove_range(shim::address_of_device(address));
  return ::cuMemUnmap(address, bytes);
}
void* driver_function(const std::string& name) {
#define FC_NAMED(function)                         \
  {                                                \
    #function, reinterpret_cast<void*>(::function) \
  }
  static const std::unordered_map<std::string, void*> all = {
      {"cuMemMap", reinterpret_cast<void*>(map_memory)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap_memory)},
      FC_NAMED(cuMemGetAllocationGranularity),
      FC_NAMED(cuMemCreate),
      FC_NAMED(cuMemRelease),
      FC_NAMED(cuMemRetainAllocationHandle),
      FC_NAMED(cuMemExportToShareableHandle),
      FC_NAMED(cuMemImportFromShareableHandle),
      FC_NAMED(cuMemAddressReserve),
      FC_NAMED(cuMemAddressFree),
      FC_NAMED(cuMemSetAccess),
      FC_NAMED(cuMemGetAddressRange),
  };
#undef FC_NAMED
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace

FC_DEFINE(cudaGetDriverEntryPointByVersion,
          (const char* name, void** function, unsigned, unsigned long long, int* status)) {
  ptx::set_up();
  *function = driver_function(name);
  *status = *function == nullptr ? 1 : 0;
  return cudaSuccess;
}

// Everything else is the shim's.
FC_EXPORT(cudaPeekAtLastError, (), ())
FC_EXPORT(cudaGetLastError, (), ())
FC_EXPORT(cudaGetDeviceCount, (int* count), (count))
FC_EXPORT(cudaGetDevice, (int* device), (device))
FC_EXPORT(cudaSetDevice, (int device), (device))
FC_DEFINE(cudaMemGetInfo, (size_t* free, size_t* all)) {
  *free = *all = size_t{1} << 32;
  return cudaSuccess;
}
FC_EXPORT(cudaDeviceGetAttribute, (int* value, int what, int device), (value, what, device))
FC_EXPORT(cudaDeviceCanAccessPeer, (int* can, int device, int peer), (can, device, peer))
FC_EXPORT(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), (peer, flags))
FC_EXPORT(cudaDeviceSynchronize, (), ())
FC_EXPORT(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags))
FC_EXPORT(cudaStreamDestroy, (cudaStream_t stream), (stream))
FC_EXPORT(cudaStreamSynchronize, (cudaStream_t stream), (stream))
FC_EXPORT(cudaStreamQuery, (cudaStream_t stream), (stream))
FC_EXPORT(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
          (stream, event, flags))
FC_EXPORT(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
FC_EXPORT(cudaEventDestroy, (cudaEvent_t event), (event))
FC_EXPORT(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
FC_EXPORT(cudaEventQuery, (cudaEvent_t event), (event))
FC_EXPORT(cudaEventSynchronize, (cudaEvent_t event), (event))
FC_EXPORT(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status),
          (stream, status))
FC_EXPORT(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), (stream, mode))
FC_EXPORT(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph), (stream, graph))
FC_EXPORT(cudaGraphInstantiate, (cudaGraphExec_t * exec, cudaGraph_t graph, uint64_t flags),
          (exec, graph, flags))
FC_EXPORT(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream))
FC_EXPORT(cudaGraphDestroy, (cudaGraph_t graph), (graph))
FC_EXPORT(cudaGraphExecDestroy, (cudaGraphExec_t exec), (exec))
FC_EXPORT(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * mode), (mode))
