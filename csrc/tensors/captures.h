// Captures of streams into graphs that may be under way in this process.
//
// A wait for a whole device makes a capture on that device fail, whoever captures, and CUDA does
// not tell whether there is one: a stream has to be asked. Those asked here are the calling
// thread's current stream, and each stream whose capture has an operation of this library.
//
// Only in builds with FC_DEVICES.
#pragma once

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)

namespace fastcomm {

/// Notes that `stream` is being captured. Thread-safe.
void note_capture(const c10::Stream& stream);

/// True if a capture of a stream of that device is known, and has not ended. Thread-safe.
bool is_capture_known(int device);

/// True if the stream was made outside of torch, and may be destroyed while torch's object lives.
bool is_external(const c10::Stream& stream);

}  // namespace fastcomm
#endif
