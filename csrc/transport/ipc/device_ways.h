// The ways in which the devices of processes can reach each other's memory, and which of them works here.
//
//   handle      of the runtime, cudaIpc (transport/ipc/device_memory.h): refused between containers, and where
//               a PID means different processes
//   descriptor  of the driver's memory (transport/ipc/virtual_memory.h): wherever the ranks share sockets
//   fabric      likewise, by the fabric manager of boxes with NVLink switches
//
// None works between devices that have no access to each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ipc/windows.h"

namespace fastcomm {

enum class DeviceWay { kHandle, kDescriptor, kFabric };

/// "handle", as FASTCOMM_IPC has it.
const char* device_way_name(DeviceWay way);
/// Those that FASTCOMM_IPC allows, in the order in which to try them.
std::vector<DeviceWay> device_ways(const std::string& setting);

std::unique_ptr<WindowMemory> device_memory(DeviceWay way, int device);

/// Windows, and how they were made.
struct DeviceWindowsFound {
  std::unique_ptr<DeviceWindows> windows;
  DeviceWay way = DeviceWay::kHandle;
  std::string why_not;  // for the ways tried before: "handle: rank 1: ..."
};

/// Collective, with the same ways on all ranks: windows on the ranks' devices, in the first way that works on all.
/// Raises Error(kSystem), on all ranks alike: no way works; as HostExchange.
DeviceWindowsFound make_device_windows(HostExchange& hosts, int rank, int device, uint64_t bytes,
                                       const std::vector<DeviceWay>& ways);

}  // namespace fastcomm
