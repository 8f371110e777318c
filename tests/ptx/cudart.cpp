// The CUDA runtime under the names that nvcc's host code links to: that of tests/shim, with its
// simulated devices; a launch executes the PTX of its kernel.
//
//   FC_PTX        the files of PTX, with ':' between them
//   FC_PTX_SEED   of the schedules
//
// Memory of devices is hidden: only what runs on them reaches it. Each allocation is followed by
// bytes that kernels must not touch, as they must not touch anything that has not been allocated.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <sstream>
#include <unordered_map>

#include "machine.h"

#define FC_API extern "C"
#include "shim/arena.h"
#include "shim/ipc.h"
#include "shim/vmm.h"
#include "shim/vmm_api.h"

struct dim3 {
  unsigned x, y, z;
};

namespace fastcomm::ptx {
namespace {

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// The names of kernels, by what host code calls them.
std::unordered_map<const void*, std::string>& kernels() {
  static auto& all = *new std::unordered_map<const void*, std::string>;
  return all;
}

std::deque<Program>& programs() {
  static auto& all = *[] {
    auto* const read = new std::deque<Program>;
    std::istringstream files(std::getenv("FC_PTX") == nullptr ? "" : std::getenv("FC_PTX"));
    for (std::string name; std::getline(files, name, ':');) read->emplace_back(name);
    return read;
  }();
  return all;
}

const Function& kernel_of(const void* host) {
  const auto name = kernels().find(host);
  if (name == kernels().end()) throw Unknown("a launch of no kernel");
  for (Program& each : programs()) {
    if (each.has(name->second)) return each.function(name->second);
  }
  throw Unknown("FC_PTX names no file with the kernel " + name->second);
}

[[noreturn]] void refuse() { throw Unknown("kernel<<<...>>>"); }

/// Two devices that reach each other, once per process: ranks are forked before they use any.
void set_up(shim::Runtime& runtime) {
  shim::Arena::Options options;
  options.hidden = true;
#if defined(__SANITIZE_THREAD__)
  options.bytes = options.imports = size_t{1} << 29;  // it keeps several bytes for each
#endif
  shim::Arena::get(options);
  runtime.set_memory_source(shim::Arena::source());
  runtime.red_zone = 64;
  runtime.comes = add_range;
  runtime.goes = [&runtime](void* memory) {
    const auto found = runtime.find(memory);
    const bool of_device = found && found->device != -1 && !found->mapped;
    if (of_device) cudaDeviceSynchronize();  // cudaFree waits, as CUDA's does
    remove_range(memory);
  };
  const std::vector<shim::Link> direct(2, shim::Link::kDirect);
  const auto queues = static_cast<int>(number_of("CUDA_DEVICE_MAX_CONNECTIONS", 0));
  runtime.configure({direct, direct}, queues);
  shim::Vmm::get().fabric = true;
}

}  // namespace
}  // namespace fastcomm::ptx

using namespace fastcomm;

// What only nvcc's host code calls. PTX that is not understood ends the program, with a message.
extern "C" {
// Programs tell the runtime their kernels before main().
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  shim::Runtime::set_up = ptx::set_up;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  ptx::kernels()[host] = name;
}
// Only kernel<<<...>>> calls these; launches here name a function (FC_LAUNCH).
void __cudaPopCallConfiguration() noexcept { ptx::refuse(); }
void __cudaGetKernel() noexcept { ptx::refuse(); }
void __cudaLaunchKernel() noexcept { ptx::refuse(); }

cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) noexcept {
  static std::atomic<uint64_t> launches{0};
  const ptx::Function& kernel = ptx::kernel_of(host);
  const bool one_dimension = grid.y * grid.z * block.y * block.z == 1;
  if (!one_dimension || grid.x == 0 || block.x > kernel.most_threads || shared != 0) {
    return shim::fail(cudaErrorInvalidValue);
  }
  const uint64_t seed = ptx::number_of("FC_PTX_SEED", 1) * 0x9e3779b97f4a7c15u + launches++;
  ptx::Launch made{&kernel, block.x, grid.x, seed, nullptr};
  made.parameters.reset(new char[kernel.parameters.bytes + 16]);
  for (const auto& each : kernel.parameters.variables) {
    std::memcpy(made.parameters.get() + each.offset, *arguments++, each.bytes);
  }
  return shim::submit(stream, kernel.name.c_str(), {}, [made] { ptx::run_grid(made); });
}
cudaError_t cudaFuncGetAttributes(void*, const void* kernel) noexcept {
  static_cast<void>(ptx::kernel_of(kernel));
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t result = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return result == cudaSuccess ? cudaStreamSynchronize(nullptr) : result;
}
/// Functions of the driver, which the program exports (shim/vmm_api.h).
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long, int* status) {
  *function = dlsym(RTLD_DEFAULT, name);
  *status = *function == nullptr ? 1 : 0;
  return cudaSuccess;
}
}
