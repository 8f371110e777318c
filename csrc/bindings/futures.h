// Works and futures as Python sees them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace fastcomm {

/// Registers them: NativeWork, PeerWork, WorkOfMany and DelegateWork, whose get_future() returns our Future, and
/// future_of(). After torch.distributed.
void bind_futures(pybind11::module_& module);

}  // namespace fastcomm
