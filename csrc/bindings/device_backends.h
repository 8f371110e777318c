// How backends for tensors on devices are made: in Python.
#pragma once

#include "c10d/choose/choose.h"

namespace fastcomm {

/// The functions of fastcomm/_distributed/device_engines.py. They take the GIL.
DeviceBackends device_backends();

}  // namespace fastcomm
