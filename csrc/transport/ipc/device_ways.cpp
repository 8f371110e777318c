#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "transport/ipc/device_ways.h"

#include "transport/ipc/device_memory.h"
#include "transport/ipc/virtual_memory.h"

namespace fastcomm {
namespace {

constexpr DeviceWay kAll[] = {DeviceWay::kHandle, DeviceWay::kDescriptor, DeviceWay::kFabric};

}  // namespace

const char* device_way_name(DeviceWay way) {
  constexpr const char* kNames[] = {"handle", "descriptor", "fabric"};
  return kNames[static_cast<int>(way)];
}

std::vector<DeviceWay> device_ways(const std::string& setting) {
  std::vector<DeviceWay> ways;
  for (const DeviceWay way : kAll) {
    if (setting == "auto" || setting == device_way_name(way)) ways.push_back(way);
  }
  return ways;
}

std::unique_ptr<WindowMemory> device_memory(DeviceWay way, int device) {
  if (way == DeviceWay::kHandle) return std::make_unique<DeviceMemory>(device);
  return std::make_unique<VirtualMemory>(device, way == DeviceWay::kFabric
                                                     ? CU_MEM_HANDLE_TYPE_FABRIC
                                                     : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

DeviceWindowsFound make_device_windows(OutOfBand& out_of_band, int rank, int device, uint64_t bytes,
                                       const std::vector<DeviceWay>& ways) {
  DeviceWindowsFound found;
  for (const DeviceWay way : ways) {
    try {
      found.windows =
          std::make_unique<DeviceWindows>(out_of_band, rank, device_memory(way, device), bytes);
      found.way = way;
      return found;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem) throw;
      found.why_not +=
          concat(found.why_not.empty() ? "" : "; ", device_way_name(way), ": ", error.what());
    }
  }
  throw Error(ErrorCode::kSystem, "the ranks cannot map each other's memory, by " + found.why_not);
}

}  // namespace fastcomm
#endif
