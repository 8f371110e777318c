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
  constexpr unsigned kVersion = 12000;  // of the functions' signatures
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
  static const auto found = [] {
    struct {
      DriverMemory functions{};
      bool all = true;
    } made;
    DriverMemory& to = made.functions;
    const auto find = [&](const char* name, auto* function) {
      made.all = find_driver_function(name, function) && made.all;
    };
    find("cuMemGetAllocationGranularity", &to.cuMemGetAllocationGranularity);
    find("cuMemCreate", &to.cuMemCreate);
    find("cuMemRelease", &to.cuMemRelease);
    find("cuMemExportToShareableHandle", &to.cuMemExportToShareableHandle);
    find("cuMemImportFromShareableHandle", &to.cuMemImportFromShareableHandle);
    find("cuMemAddressReserve", &to.cuMemAddressReserve);
    find("cuMemAddressFree", &to.cuMemAddressFree);
    find("cuMemMap", &to.cuMemMap);
    find("cuMemUnmap", &to.cuMemUnmap);
    find("cuMemSetAccess", &to.cuMemSetAccess);
    return made;
  }();
  if (!found.all) {
    throw Error(ErrorCode::kSystem, "this CUDA driver has no functions for virtual memory");
  }
  return found.functions;
}
#endif

std::string driver_error_text(CUresult error, const char* expression) {
  std::string call(expression);
  call = call.substr(0, call.find('('));
  return concat(call.substr(call.rfind('.') + 1), ": ", name_of(error));
}

}  // namespace fastcomm
#endif
