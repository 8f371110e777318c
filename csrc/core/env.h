// Every FASTCOMM_* variable that the native code reads, in one place. Parsed once a process.
#pragma once

#include <cstdint>
#include <string>

namespace fastcomm {

struct Environment {
  std::string transport = "auto";  // FASTCOMM_TRANSPORT: auto, memfd, posix or gloo
  std::string isa = "auto";        // FASTCOMM_ISA: auto, generic, avx2 or avx512
  bool peer_access = true;         // FASTCOMM_PEER_ACCESS: auto or off
  uint64_t segment_bytes = 0;      // FASTCOMM_SEGMENT_MB: shared memory a process may use at most
  uint64_t payload_bytes = 0;      // FASTCOMM_ONE_SHOT_BYTES: largest one-shot message; 0 chooses
  uint64_t block_bytes = 0;    // FASTCOMM_BLOCK_BYTES: what one step of a pipeline moves; 0 chooses
  std::string route = "auto";  // FASTCOMM_ROUTE: auto, pinned, or nccl for all tensors on devices
  std::string ipc = "auto";    // FASTCOMM_IPC: auto, handle, descriptor or fabric
  uint64_t window_bytes = 0;   // FASTCOMM_WINDOW_BYTES: of an area of a device's window
  uint64_t pool_bytes =
      0;  // FASTCOMM_POOL_MB: of tensors in a device's memory that peers map, at most
  int device_blocks =
      0;                 // FASTCOMM_DEVICE_BLOCKS: of kernels between processes' devices; 0 chooses
  int64_t spin_us = -1;  // FASTCOMM_SPIN_US: -1 chooses by cores and ranks
};

/// The parsed environment. Raises Error(kInvalidArgument) naming the variable, what it was and what
/// it may be.
const Environment& environment();

/// Parses anew; environment() is the result of the first call.
Environment parse_environment();

}  // namespace fastcomm
