// Ways in which the devices of processes reach each other's memory, and the choice of one that
// works.
//
//   handle      of the runtime, cudaIpc (transport/ipc/device_memory.h): refused between
//               containers, and if a PID means different processes
//   descriptor  of the driver's memory (transport/ipc/virtual_memory.h): if the ranks share sockets
//   fabric      likewise, by the fabric manager of boxes with NVLink switches
//
// None works between devices without access to each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ipc/windows.h"

namespace fastcomm {

enum class DeviceWay { kHandle, kDescriptor, kFabric };

/// "handle", as in FASTCOMM_IPC.
const char* device_way_name(DeviceWay way);
/// The ways that FASTCOMM_IPC allows, in the order in which to try them.
std::vector<DeviceWay> device_ways(const std::string& setting);

std::unique_ptr<WindowMemory> device_memory(DeviceWay way, int device);

/// Windows, and the way that made them.
struct DeviceWindowsFound {
  std::unique_ptr<DeviceWindows> windows;
  DeviceWay way = DeviceWay::kHandle;
  std::string why_not;  // of the ways tried before: "handle: rank 1: ..."
};

/// Makes windows on the ranks' devices, in the first way that works on all ranks. Collective, with
/// the same ways on all ranks. Raises Error(kSystem) on all ranks if no way works, and errors of
/// OutOfBand.
DeviceWindowsFound make_device_windows(OutOfBand& out_of_band, int rank, int device, uint64_t bytes,
                                       const std::vector<DeviceWay>& ways);

}  // namespace fastcomm
