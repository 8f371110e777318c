// Common tools of operations on lists of tensors on devices: their devices as ranks of a DeviceSet,
// torch's current streams, and memory from torch.
//
// Only in builds with FC_DEVICES. Any thread may call these functions.
#pragma once

#include <map>
#include <vector>

#include "devices/exchange.h"
#include "tensors/accelerator.h"

namespace fastcomm {

/// Access of this process's devices to each other's tensors. It is direct if kernels reach the
/// memory (devices/peer_probe.h), and torch's allocator maps its memory for them.
PeerAccess& tensor_access();

/// The devices of some operations; keeps their events and pinned memory from one operation to the
/// next.
struct DeviceRanks {
  explicit DeviceRanks(const std::vector<int>& devices);

  DeviceSet set;
  Exchange exchange;
};

/// One per list of devices, never destroyed: CUDA may be gone before destructors run. Raises
/// Error(kUnsupported) if a graph is being captured that cannot hold the work of these devices.
DeviceRanks& device_ranks(const std::vector<int>& devices);

/// True if a DeviceSet can have so many ranks.
inline bool can_meet(size_t ranks) {
  return ranks >= 1 && ranks <= static_cast<size_t>(kMaxLocalRanks);
}

/// The calling thread's current streams.
Streams current_streams(const std::vector<int>& devices);

/// The same as record_use of tensors/accelerator.h, for the current stream of the device.
void record_use(const TensorList& tensors, int device);

/// Called when an operation needs only the memory of its temporary tensors. That memory has to live
/// until the operation is enqueued; a negative control frees it here, for others to use.
inline void keep_until_enqueued(TensorList& tensors) {
  if (FC_LEFT_OUT(Control::kFreeEarly)) tensors.clear();
}

/// The indices in a list of each dtype's tensors.
std::map<at::ScalarType, std::vector<size_t>> by_dtype(const TensorList& tensors);

/// New tensors like `models`, which are plain, on a device. Many tensors of one dtype share a block
/// of memory.
TensorList allocate_like(const TensorList& models, int device);

/// True if all lie in memory of that device, and none is a wrapper around another tensor.
bool are_on(const TensorList& tensors, int64_t device);

}  // namespace fastcomm
