// Common state of operations on lists of tensors on devices: their devices as ranks of a group,
// torch's current streams, its memory.
//
// Only in builds with FC_DEVICES. Any thread may call.
#pragma once

#include <map>
#include <vector>

#include "devices/exchange.h"
#include "tensors/accelerator.h"

namespace fastcomm {

/// Access of this process's devices to each other's tensors: kernels reach the memory
/// (devices/peer_probe.h), and torch's allocator maps its memory for them.
PeerAccess& tensor_access();

/// The devices of some operations; keeps their events and pinned memory from one operation to the
/// next.
struct DeviceRanks {
  explicit DeviceRanks(const std::vector<int>& devices);

  DeviceSet set;
  Exchange exchange;
};

/// One per list of devices, for good: CUDA may be gone before destructors run. Raises
/// Error(kUnsupported) if a graph is being captured that cannot hold the work of these devices.
DeviceRanks& device_ranks(const std::vector<int>& devices);

inline bool can_meet(size_t ranks) {
  return ranks >= 1 && ranks <= static_cast<size_t>(kMaxLocalRanks);
}

/// The calling thread's current streams.
Streams current_streams(const std::vector<int>& devices);

/// As record_use of tensors/accelerator.h, for the current stream of the device.
void record_use(const TensorList& tensors, int device);

/// Called once an operation does not need its own temporary tensors for their forms any more. They
/// have to live until it has been enqueued: otherwise their memory would be given to others.
inline void keep_until_enqueued(TensorList& tensors) {
  if (FC_LEFT_OUT(Control::kFreeEarly)) tensors.clear();
}

/// The places of each dtype's tensors in a list.
std::map<at::ScalarType, std::vector<size_t>> by_dtype(const TensorList& tensors);

/// New tensors like `models`, which are plain, on a device: many of a type per block.
TensorList allocate_like(const TensorList& models, int device);

/// True if all are tensors on that device, without wrappers around them.
bool are_on(const TensorList& tensors, int64_t device);

}  // namespace fastcomm
