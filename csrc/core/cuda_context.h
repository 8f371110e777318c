// Which devices have a context in this process, and how one device is used without giving another one.
//
// The primary context of a device takes hundreds of megabytes of it. cudaSetDevice creates it, since
// CUDA 12, and so does the return to a device that was current by default alone: device 0 of a
// process that works on others. The driver can push a context and pop it again, which leaves what was
// current before as it was. The driver is reached through the runtime: nothing links libcuda.
//
// Only in builds with FC_WITH_CUDA or FC_SHIM (shim/contexts.h).
#pragma once

namespace fastcomm {

/// Whether `device` has a context. Creates none. True where the driver cannot be asked.
bool has_context(int device);

/// Makes the primary context of `device`, created if need be and then kept, current to this thread
/// until pop_context(): the runtime uses it in place of its own device's. False, with nothing done,
/// where the driver refuses.
bool push_context(int device);
void pop_context();

}  // namespace fastcomm
