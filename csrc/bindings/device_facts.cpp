#include <array>
#include <string>
#include <vector>

#include "bindings/module.h"
#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include "core/cuda_context.h"
#include "core/cuda_host.h"
#endif

namespace py = pybind11;

namespace fastcomm {
namespace {

#if defined(FC_DEVICES)
/// 0 without a device, or without a driver.
int visible_devices() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess) return count;
  forget_error(result);
  return 0;
}
#endif

/// Versions as CUDA has them, 12010 for 12.1, and 0 for none; of each device its place on the PCI
/// bus, and whether the driver ends kernels there that run for seconds. Makes no context.
py::dict device_facts() {
  int driver = 0;
  int runtime = 0;
  std::vector<std::string> buses;
  std::vector<bool> watchdogs;
#if defined(FC_DEVICES)
  constexpr const char* kWhat = "facts of devices";
  FC_CUDA(cudaDriverGetVersion(&driver), kWhat);
  FC_CUDA(cudaRuntimeGetVersion(&runtime), kWhat);
  for (int device = 0; device < visible_devices(); ++device) {
    std::array<char, 32> bus{};
    FC_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), kWhat);
    buses.emplace_back(bus.data());
    int watched = 0;
    FC_CUDA(cudaDeviceGetAttribute(&watched, cudaDevAttrKernelExecTimeout, device), kWhat);
    watchdogs.push_back(watched != 0);
  }
#endif
  return py::dict(py::arg("driver") = driver, py::arg("runtime") = runtime,
                  py::arg("buses") = buses, py::arg("watchdogs") = watchdogs);
}

/// The devices that have a context in this process.
std::vector<int> device_contexts() {
  std::vector<int> found;
#if defined(FC_DEVICES)
  for (int device = 0; device < visible_devices(); ++device) {
    if (has_context(device)) found.push_back(device);
  }
#endif
  return found;
}

}  // namespace

void bind_device_facts(py::module_& module) {
  module.def("device_facts", device_facts);
  module.def("device_contexts", device_contexts);
}

}  // namespace fastcomm
