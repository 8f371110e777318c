// Functions of the CUDA driver. They are looked up by name and version, on first use, through the
// runtime: nothing links libcuda, so the library loads without it.
//
// Only in builds with FC_WITH_CUDA or FC_SHIM.
#pragma once

#if defined(FC_SHIM)
#include "shim/vmm.h"
#else
#include <cuda.h>
#include <cuda_runtime_api.h>
#endif

#include <string>

#include "core/cuda_host.h"
#include "core/error.h"

namespace fastcomm {

#if !defined(FC_SHIM)
#if CUDA_VERSION < 12030
// Names that older toolkits lack.
constexpr auto CU_MEM_HANDLE_TYPE_FABRIC = static_cast<CUmemAllocationHandleType>(8);
struct CUmemFabricHandle {
  unsigned char data[64];
};
#endif

/// Returns false, and sets nullptr, if the driver has no such function.
bool find_driver_function(const char* name, void** function);
template <class Function>
bool find_driver_function(const char* name, Function* function) {
  void* found = nullptr;
  const bool there = find_driver_function(name, &found);
  *function = reinterpret_cast<Function>(found);
  return there;
}
#endif

/// Functions that create, export and map physical memory (virtual memory management), as in the
/// driver's reference.
struct DriverMemory {
  decltype(&::cuMemGetAllocationGranularity) cuMemGetAllocationGranularity;
  decltype(&::cuMemCreate) cuMemCreate;
  decltype(&::cuMemRelease) cuMemRelease;
  decltype(&::cuMemExportToShareableHandle) cuMemExportToShareableHandle;
  decltype(&::cuMemImportFromShareableHandle) cuMemImportFromShareableHandle;
  decltype(&::cuMemAddressReserve) cuMemAddressReserve;
  decltype(&::cuMemAddressFree) cuMemAddressFree;
  decltype(&::cuMemMap) cuMemMap;
  decltype(&::cuMemUnmap) cuMemUnmap;
  decltype(&::cuMemSetAccess) cuMemSetAccess;
};

/// Raises Error(kSystem) if the driver has none of them.
const DriverMemory& driver_memory();

/// "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED"; `expression` is the text of the failed call.
std::string driver_error_text(CUresult error, const char* expression);

}  // namespace fastcomm

/// FC_CUDA for a call of the driver.
#define FC_DRIVER(call, ...)                                                                       \
  do {                                                                                             \
    const CUresult fc_result = (call);                                                             \
    if (fc_result != CUDA_SUCCESS)                                                                 \
      throw ::fastcomm::Error(                                                                     \
          ::fastcomm::ErrorCode::kSystem,                                                          \
          ::fastcomm::concat(::fastcomm::driver_error_text(fc_result, #call), ": ", __VA_ARGS__)); \
  } while (0)
