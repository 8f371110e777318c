// Every FASTCOMM_* variable that the native code reads. Parsed once per process.
#pragma once

#include <cstdint>
#include <string>

namespace fastcomm {

struct Environment {
  std::string transport = "auto";  // FASTCOMM_TRANSPORT: auto, memfd, posix or gloo
  std::string isa = "auto";        // FASTCOMM_ISA: auto, generic, avx2 or avx512
  bool peer_access = true;         // FASTCOMM_PEER_ACCESS: auto or off
  uint64_t segment_bytes = 0;      // FASTCOMM_SEGMENT_MB: most shared memory of a process
  uint64_t payload_bytes = 0;      // FASTCOMM_ONE_SHOT_BYTES: largest one-shot message; 0 chooses
  uint64_t block_bytes = 0;        // FASTCOMM_BLOCK_BYTES: block of a pipeline step; 0 chooses
  std::string route = "auto";  // FASTCOMM_ROUTE: auto, pinned, or nccl for all tensors on devices
  std::string ipc = "auto";    // FASTCOMM_IPC: auto, handle, descriptor or fabric
  uint64_t window_bytes = 0;   // FASTCOMM_WINDOW_BYTES: per area of a device's window
  uint64_t pool_bytes = 0;     // FASTCOMM_POOL_MB: most device memory for tensors that peers map
  // FASTCOMM_DEVICE_BLOCKS: of kernels between processes' devices; 0 chooses
  int device_blocks = 0;
  // FASTCOMM_DEVICE_RESULTS: auto, push or pull: how devices get their slices of a reduction
  std::string device_results = "auto";
  int64_t spin_us = -1;        // FASTCOMM_SPIN_US: -1 chooses by cores and ranks
  bool call_sites = false;     // FASTCOMM_CALL_SITES: off or on
  double wait_warning_s = 30;  // FASTCOMM_WAIT_WARNING_S: 0: never
};

struct Limits {
  int64_t least, most;
};
constexpr Limits kPayloadLimits{64, 4 << 20}, kBlockLimits{4 << 10, 64 << 20};
constexpr Limits kDeviceBlocksLimits{0, 1 << 16};
/// Sizes are multiples of these; others are rounded down.
constexpr uint64_t kPayloadUnit = 64, kBlockUnit = 4096;

/// The parsed environment. Raises Error(kInvalidArgument) with the variable, its value and the
/// allowed ones.
const Environment& environment();

/// Parses anew; environment() keeps the result of the first call.
Environment parse_environment();

}  // namespace fastcomm
