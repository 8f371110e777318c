#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "core/cuda_driver.h"

namespace fastcomm {
namespace {

std::string name_of(CUresult error) {
#if defined(FC_SHIM)
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE:
      return "CUDA_ERROR_INVALID_VALUE";
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "CUDA_ERROR_OUT_OF_MEMORY";
    case CUDA_ERROR_NOT_SUPPORTED:
      return "CUDA_ERROR_NOT_SUPPORTED";
    default:
      break;
  }
#else
  static decltype(&::cuGetErrorName) const known = [] {
    decltype(&::cuGetErrorName) found = nullptr;
    find_driver_function("cuGetErrorName", &found);
    return found;
  }();
  const char* text = nullptr;
  if (known != nullptr && known(error, &text) == CUDA_SUCCESS && text != nullptr) return text;
#endif
  return concat("error ", static_cast<int>(error), " of the driver");
}

}  // namespace

#if defined(FC_SHIM)
const DriverMemory& driver_memory() {
  static const DriverMemory functions{
      ::cuMemGetAllocationGranularity,
      ::cuMemCreate,
      ::cuMemRelease,
      ::cuMemExportToShareableHandle,
      ::cuMemImportFromShareableHandle,
      ::cuMemAddressReserve,
      ::cuMemAddressFree,
      ::cuMemMap,
      ::cuMemUnmap,
      ::cuMemSetAccess,
  };
  return functions;
}
#else
bool find_driver_function(const char* name, void** function) {
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kVersion = 12000;  // version of the functions' signatures
#if CUDART_VERSION >= 12050
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion(name, function, kVersion, cudaEnableDefault, &status);
#else
  static_cast<void>(kVersion);
  const cudaError_t result = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &status);
#endif
  forget_error(result);
  if (result == cudaSuccess && status == cudaDriverEntryPointSuccess && *function != nullptr)
    return true;
  *function = nullptr;
  return false;
}

const DriverMemory& driver_memory() {
  static DriverMemory to{};
  static const bool all =
      find_driver_function("cuMemGetAllocationGranularity", &to.cuMemGetAllocationGranularity) &&
      find_driver_function("cuMemCreate", &to.cuMemCreate) &&
      find_driver_function("cuMemRelease", &to.cuMemRelease) &&
      find_driver_function("cuMemExportToShareableHandle", &to.cuMemExportToShareableHandle) &&
      find_driver_function("cuMemImportFromShareableHandle", &to.cuMemImportFromShareableHandle) &&
      find_driver_function("cuMemAddressReserve", &to.cuMemAddressReserve) &&
      find_driver_function("cuMemAddressFree", &to.cuMemAddressFree) &&
      find_driver_function("cuMemMap", &to.cuMemMap) &&
      find_driver_function("cuMemUnmap", &to.cuMemUnmap) &&
      find_driver_function("cuMemSetAccess", &to.cuMemSetAccess);
  if (!all) throw Error(ErrorCode::kSystem, "this CUDA driver has no functions for virtual memory");
  return to;
}
#endif

std::string driver_error_text(CUresult error, const char* expression) {
  std::string call(expression);
  call = call.substr(0, call.find('('));
  return concat(call.substr(call.rfind('.') + 1), ": ", name_of(error));
}

}  // namespace fastcomm
#endif
