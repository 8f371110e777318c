// How large the slots of a group are, and where they lie: what goes in one step, and in which blocks the rest. Equal
// on all ranks, which take rank 0's.
#pragma once

#include <cstdint>

#include "coll/plan.h"

namespace fastcomm {

/// In bytes; ScratchLayout says what they are.
struct SlotSizes {
  uint64_t payload_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t rotation_bytes = 0;
};

/// Who has chosen the largest payload. The numbers travel between processes.
enum class SizesFrom : uint32_t { kDefault = 0, kTuned = 1, kEnvironment = 2 };

/// For messages: "by default for 2 ranks", "tuned for 2 ranks", "FASTCOMM_ONE_SHOT_BYTES".
const char* sizes_from_text(SizesFrom from);

struct ChosenSizes {
  SlotSizes sizes;
  SizesFrom from = SizesFrom::kDefault;
};

/// For a group of so many ranks: by the environment, or else as tuned, or else by default.
ChosenSizes choose_slot_sizes(int ranks);

/// The scratch of a group of `size` ranks with such slots.
ScratchLayout scratch_layout(const SlotSizes& sizes, int size);

/// What has been measured on this machine for groups of so many ranks (`python -m fastcomm tune`); 0: nothing. From the
/// next group on.
void set_tuned_sizes(int ranks, uint64_t payload_bytes, uint64_t block_bytes);

}  // namespace fastcomm
