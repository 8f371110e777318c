// Tells which devices have a context in this process, and uses one device without creating a
// context on another.
//
// The primary context of a device takes hundreds of megabytes of its memory. Since CUDA 12
// cudaSetDevice creates it, even when it only returns to a device that was current by default:
// device 0 of a process that works on others. The driver can push and pop a context instead, which
// restores what was current before. The driver is reached through the runtime: nothing links
// libcuda.
//
// Only in builds with FC_WITH_CUDA or FC_SHIM (shim/contexts.h).
#pragma once

namespace fastcomm {

/// True if `device` has a context, or if the driver cannot be asked. Creates none.
bool has_context(int device);

/// Makes the primary context of `device` current to this thread until pop_context(); creates it if
/// need be, and keeps it. The runtime then uses it instead of its own device's. Returns false, and
/// does nothing, if the driver refuses.
bool push_context(int device);
void pop_context();

}  // namespace fastcomm
