// Sizes and places of the slots of a group: the largest message of one step, and the blocks of
// longer ones. Equal on all ranks, which take rank 0's.
#pragma once

#include <cstdint>

#include "coll/plan.h"
#include "core/tuning.h"

namespace fastcomm {

/// In bytes; described in ScratchLayout.
struct SlotSizes {
  uint64_t payload_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t rotation_bytes = 0;
};

struct ChosenSizes {
  SlotSizes sizes;
  ChosenBy payload_by = ChosenBy::kDefault;
};

/// For a group of `ranks` ranks: set by the environment, else as tuned (core/tuning.h), else by
/// default.
ChosenSizes choose_slot_sizes(int ranks);

/// The scratch of a group of `size` ranks with such slots.
ScratchLayout scratch_layout(const SlotSizes& sizes, int size);

}  // namespace fastcomm
