#include "coll/slot_sizes.h"

#include <algorithm>

#include "coll/all_to_all_v.h"
#include "core/caches.h"
#include "core/env.h"
#include "kernels/norm.h"

namespace fastcomm {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = kKiB * kKiB;

/// With two ranks, each reads as much in one step as in a pipeline; with more ranks, more.
uint64_t default_payload(int ranks) { return ranks == 2 ? kMiB : 256 * kKiB; }

/// The block that one rank stages stays in its cache until the peers have read it. `fastcomm tune`
/// tries others: on two cores with 1 MiB each, blocks of 2 MiB took 1.5 times as long for 64 MiB,
/// and of 512 KiB 1.1 times.
uint64_t default_block() { return std::clamp(level2_cache(), 512 * kKiB, 2 * kMiB); }

/// A rank's share of a block must hold the largest unit of a gradient, of the widest type, with its
/// norm.
uint64_t least_block(int ranks) {
  return static_cast<uint64_t>(ranks) * (kNormBlock * sizeof(double) + kKiB);
}

/// After this many bytes, lines have left the peers' second-level caches; no more, since it takes
/// room in the next level's.
uint64_t default_rotation() { return std::clamp(2 * level2_cache(), 2 * kMiB, 8 * kMiB); }

}  // namespace

ChosenSizes choose_slot_sizes(int ranks) {
  const Environment& env = environment();
  const Tuning tuning = tuning_for(ranks);
  ChosenSizes chosen{{default_payload(ranks), default_block(), default_rotation()},
                     ChosenBy::kDefault};
  if (tuning.payload_bytes != 0) {
    chosen.sizes.payload_bytes = tuning.payload_bytes;
    chosen.payload_by = ChosenBy::kTuning;
  }
  if (tuning.block_bytes != 0) chosen.sizes.block_bytes = tuning.block_bytes;
  chosen.sizes.block_bytes = std::max(chosen.sizes.block_bytes, least_block(ranks));
  if (env.payload_bytes != 0) {
    chosen.sizes.payload_bytes = env.payload_bytes;
    chosen.payload_by = ChosenBy::kEnvironment;
  }
  if (env.block_bytes != 0) chosen.sizes.block_bytes = env.block_bytes;
  chosen.sizes.rotation_bytes =
      std::max(chosen.sizes.rotation_bytes, 2 * chosen.sizes.payload_bytes);
  return chosen;
}

ScratchLayout scratch_layout(const SlotSizes& sizes, int size) {
  constexpr uint64_t kAlign = ScratchLayout::kSlotAlign, kMostShort = 1024;
  ScratchLayout layout{};
  layout.payload_bytes = round_up(sizes.payload_bytes, kAlign);
  layout.block_bytes = round_up(sizes.block_bytes, kAlign);
  layout.table_bytes = round_up(MessageTable::bytes_for(size), kAlign);
  layout.result_bytes = round_up(ceil_div(layout.block_bytes, static_cast<uint64_t>(size)), kAlign);
  layout.rotation_bytes =
      std::max(round_up(sizes.rotation_bytes, 2 * kAlign), 2 * layout.payload_bytes);
  layout.short_bytes = smaller(kMostShort, round_up(layout.payload_bytes / 4, kAlign));
  return layout;
}

}  // namespace fastcomm
