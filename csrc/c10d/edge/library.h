// What operators of torch.library find of a process group.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

#include "c10d/edge/backend.h"

namespace fastcomm {

/// The backend of a group for tensors on a device; raises if it is not fastcomm. Borrowed from the
/// group, which the caller of the operator keeps.
FastcommBackend& backend_of(const std::string& group_name, c10::DeviceType device);

}  // namespace fastcomm
