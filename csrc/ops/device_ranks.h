// What operations on lists of tensors on CUDA devices share: the devices of an operation as ranks
// of a group, torch's current streams, its memory.
//
// Only in builds with FC_WITH_CUDA. Any thread may call.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "devices/local_collectives.h"
#include "ops/device_lists.h"

namespace fastcomm {

/// The devices of some operations, which keep their events and pinned memory from one to the next.
struct DeviceRanks {
  explicit DeviceRanks(const std::vector<int>& devices);

  DeviceSet set;
  LocalCollectives collectives;
};

/// One for each list of devices, for good: CUDA may be gone before destructors run.
DeviceRanks& device_ranks(const std::vector<int>& devices);

inline bool can_meet(size_t ranks) {
  return ranks >= 1 && ranks <= static_cast<size_t>(kMaxLocalRanks);
}
inline std::vector<int> as_ranks(const DeviceIndices& devices) {
  return {devices.begin(), devices.end()};
}

c10::cuda::CUDAStream current_stream(int device);
Streams current_streams(const std::vector<int>& devices);

/// Memory that was allocated for another stream is not given out again before the current one of
/// the device is done.
void record_use(const TensorList& tensors, int device);

/// New tensors like `models`, which are plain, on a device: many in a block, or each in its own.
TensorList allocate_like(const TensorList& models, int device, bool apart = false);

/// Whether all are tensors on that device, without wrappers around them.
bool are_on(const TensorList& tensors, int64_t device);

/// For sources, which the collectives take as they take destinations.
Tensors read_pointers(const TensorList& tensors);

}  // namespace fastcomm
