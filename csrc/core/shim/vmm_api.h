// The functions of the CUDA driver for memory by file descriptors, over core/shim/vmm.h.
#pragma once

#include "core/shim/vmm.h"

namespace fastcomm::shim {

inline char* address_of_device(CUdeviceptr address) { return reinterpret_cast<char*>(address); }

}  // namespace fastcomm::shim

inline CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
  *bytes = fastcomm::shim::Vmm::kGranularity;
  return CUDA_SUCCESS;
}
inline CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                            const CUmemAllocationProp* prop, unsigned long long flags) {
  if (flags != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return fastcomm::shim::Vmm::get().create(
      handle, bytes, prop->location.id,
      prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}
inline CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return fastcomm::shim::Vmm::get().release(handle);
}
inline CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return fastcomm::shim::Vmm::get().retain(handle, address);
}
/// `shareable` is an int's, which the caller closes.
inline CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags) {
  if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return fastcomm::shim::Vmm::get().export_to(static_cast<int*>(shareable), handle);
}
/// `shareable` is the descriptor itself, not where it stands; the caller may close it afterwards.
inline CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                               void* shareable, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const auto file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  return fastcomm::shim::Vmm::get().import(handle, file);
}
inline CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                    CUdeviceptr wanted, unsigned long long flags) {
  if (flags != 0 || alignment > fastcomm::shim::Vmm::kGranularity || wanted != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return fastcomm::shim::Vmm::get().reserve(address, bytes);
}
inline CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return fastcomm::shim::Vmm::get().free_addresses(fastcomm::shim::address_of_device(address),
                                                   bytes);
}
inline CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (flags != 0 || offset != 0) return CUDA_ERROR_INVALID_VALUE;
  return fastcomm::shim::Vmm::get().map(fastcomm::shim::address_of_device(address), bytes, handle);
}
inline CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return fastcomm::shim::Vmm::get().unmap(fastcomm::shim::address_of_device(address), bytes);
}
inline CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                               size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = fastcomm::shim::Vmm::get().grant(
        fastcomm::shim::address_of_device(address), bytes, access[i].location.id);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
inline CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const auto found =
      fastcomm::shim::Runtime::get().find(fastcomm::shim::address_of_device(address));
  if (!found || found->device == -1) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(found->base);
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}
