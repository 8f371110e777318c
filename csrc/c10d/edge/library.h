// What operators of torch.library find of a process group.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

#include "c10d/edge/backend.h"

namespace fastcomm {

/// A group's backend for tensors on a device, and the same if it is fastcomm's, else nullptr: then
/// it is another of torch's, or its checks (TORCH_DISTRIBUTED_DEBUG=DETAIL) in front of one.
struct BackendFound {
  ::c10d::Backend* any;
  FastcommBackend* own;
};

/// Borrowed from the group, which the caller of the operator keeps.
BackendFound backend_of(const std::string& group_name, c10::DeviceType device);

}  // namespace fastcomm
