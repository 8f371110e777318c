// Results of `fastcomm tune` on this machine, per number of ranks, and of hosts. A process gets
// them when it loads this library. A group takes rank 0's values when it is formed, unless the
// environment sets them (core/env.h).
#pragma once

#include <cstdint>

namespace fastcomm {

/// 0 or false: not measured, so the default holds.
struct Tuning {
  uint64_t payload_bytes = 0;  // FASTCOMM_ONE_SHOT_BYTES, of ranks on the host
  uint64_t block_bytes = 0;    // FASTCOMM_BLOCK_BYTES
  uint64_t slot_bytes = 0;     // FASTCOMM_ONE_SHOT_BYTES, of ranks on devices
  int device_blocks = 0;       // FASTCOMM_DEVICE_BLOCKS
  bool pulls = false;          // FASTCOMM_DEVICE_RESULTS=pull
};

/// Of groups over several hosts. 0: likewise.
struct HostTuning {
  uint64_t short_bytes = 0;  // FASTCOMM_HOSTS_SHORT_BYTES
  uint64_t chunk_bytes = 0;  // FASTCOMM_HOSTS_CHUNK_BYTES
};

/// The source of a value. The numbers travel between processes.
enum class ChosenBy : uint32_t { kDefault = 0, kTuning = 1, kEnvironment = 2 };

/// For messages: "FASTCOMM_ONE_SHOT_BYTES", "tuned for this number of ranks", "by default for this
/// number of ranks".
const char* chosen_by_text(ChosenBy who, const char* variable);

/// Thread-safe; all zeros if no tuning is known.
Tuning tuning_for(int ranks);
/// Takes effect from the next group on. Sizes are rounded like those of the environment. Raises
/// Error(kInvalidArgument) for a value that no setting could have. Thread-safe.
void set_tuning(int ranks, const Tuning& tuning);

/// The same for `hosts` of `ranks` ranks each. Values that the settings would round are refused.
HostTuning host_tuning_for(int hosts, int ranks);
void set_host_tuning(int hosts, int ranks, const HostTuning& tuning);
/// True if each value is 0 or one that its setting could have.
bool is_host_tuning(const HostTuning& tuning);

}  // namespace fastcomm
