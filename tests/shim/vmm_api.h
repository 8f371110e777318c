// Functions of the CUDA driver for memory that processes share by file descriptors or fabric
// handles, over shim/vmm.h.
#pragma once

#include "shim/vmm.h"

namespace fastcomm::shim {

inline char* address_of_device(CUdeviceptr address) { return reinterpret_cast<char*>(address); }

}  // namespace fastcomm::shim

FC_API CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
  if (fastcomm::shim::Vmm::get().refuses("cuMemGetAllocationGranularity"))
    return CUDA_ERROR_NOT_SUPPORTED;
  *bytes = fastcomm::shim::Vmm::kGranularity;
  return CUDA_SUCCESS;
}
FC_API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                            const CUmemAllocationProp* prop, unsigned long long flags) {
  if (fastcomm::shim::Vmm::get().refuses("cuMemCreate")) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return fastcomm::shim::Vmm::get().create(handle, bytes, prop->location.id,
                                           prop->requestedHandleTypes);
}
FC_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return fastcomm::shim::Vmm::get().release(handle);
}
FC_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return fastcomm::shim::Vmm::get().retain(handle, address);
}
/// `shareable` points to an int, for a descriptor that the caller closes, or to a
/// CUmemFabricHandle.
FC_API CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags) {
  if (fastcomm::shim::Vmm::get().refuses("cuMemExportToShareableHandle"))
    return CUDA_ERROR_NOT_SUPPORTED;
  auto& vmm = fastcomm::shim::Vmm::get();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    return vmm.export_to(static_cast<CUmemFabricHandle*>(shareable), handle);
  }
  return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
             ? vmm.export_to(static_cast<int*>(shareable), handle)
             : CUDA_ERROR_INVALID_VALUE;
}
/// `shareable` points to a CUmemFabricHandle, or is the value of a descriptor, which the caller may
/// close afterwards.
FC_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                               void* shareable, CUmemAllocationHandleType type) {
  if (fastcomm::shim::Vmm::get().refuses("cuMemImportFromShareableHandle"))
    return CUDA_ERROR_NOT_SUPPORTED;
  auto& vmm = fastcomm::shim::Vmm::get();
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    return vmm.import(handle, *static_cast<const CUmemFabricHandle*>(shareable));
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return vmm.import(handle, static_cast<int>(reinterpret_cast<intptr_t>(shareable)));
}
FC_API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                    CUdeviceptr wanted, unsigned long long flags) {
  if (fastcomm::shim::Vmm::get().refuses("cuMemAddressReserve")) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != 0 || alignment > fastcomm::shim::Vmm::kGranularity || wanted != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return fastcomm::shim::Vmm::get().reserve(address, bytes);
}
FC_API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return fastcomm::shim::Vmm::get().free_addresses(fastcomm::shim::address_of_device(address),
                                                   bytes);
}
FC_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (fastcomm::shim::Vmm::get().refuses("cuMemMap")) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != 0 || offset != 0) return CUDA_ERROR_INVALID_VALUE;
  return fastcomm::shim::Vmm::get().map(fastcomm::shim::address_of_device(address), bytes, handle);
}
FC_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return fastcomm::shim::Vmm::get().unmap(fastcomm::shim::address_of_device(address), bytes);
}
FC_API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                               size_t count) {
  if (fastcomm::shim::Vmm::get().refuses("cuMemSetAccess")) return CUDA_ERROR_NOT_SUPPORTED;
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
FC_API CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const auto found =
      fastcomm::shim::Runtime::get().find(fastcomm::shim::address_of_device(address));
  if (!found || found->device == -1) return CUDA_ERROR_NOT_FOUND;  // -1: memory of the host
  if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(found->base);
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}
