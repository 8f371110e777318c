#include "coll/slot_sizes.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "coll/all_to_all_v.h"
#include "core/env.h"

namespace fastcomm {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = kKiB * kKiB;

/// Of two ranks each reads as much in one step as in a pipeline; of more, more.
uint64_t default_payload(int ranks) { return ranks == 2 ? kMiB : 64 * kKiB; }

/// What lines have left the peers' second-level caches behind; no more, since it takes room in those of the next level.
uint64_t default_rotation() {
  const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const uint64_t known = cache > 0 ? static_cast<uint64_t>(cache) : kMiB;
  return std::clamp(2 * known, 2 * kMiB, 8 * kMiB);
}

struct Tuned {
  std::mutex mutex;
  std::map<int, SlotSizes> sizes;
};
Tuned& tuned() {
  static auto& all = *new Tuned;
  return all;
}

}  // namespace

const char* sizes_from_text(SizesFrom from) {
  switch (from) {
    case SizesFrom::kEnvironment:
      return "FASTCOMM_ONE_SHOT_BYTES";
    case SizesFrom::kTuned:
      return "tuned for so many ranks";
    default:
      return "by default for so many ranks";
  }
}

ChosenSizes choose_slot_sizes(int ranks) {
  const Environment& env = environment();
  ChosenSizes chosen{{default_payload(ranks), 2 * kMiB, default_rotation()}, SizesFrom::kDefault};
  {
    Tuned& known = tuned();
    const std::lock_guard<std::mutex> lock(known.mutex);
    const auto found = known.sizes.find(ranks);
    if (found != known.sizes.end()) {
      const SlotSizes& sizes = found->second;
      if (sizes.payload_bytes != 0) {
        chosen.sizes.payload_bytes = sizes.payload_bytes;
        chosen.from = SizesFrom::kTuned;
      }
      if (sizes.block_bytes != 0) chosen.sizes.block_bytes = sizes.block_bytes;
    }
  }
  if (env.payload_bytes != 0) {
    chosen.sizes.payload_bytes = env.payload_bytes;
    chosen.from = SizesFrom::kEnvironment;
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
  layout.rotation_bytes = round_up(sizes.rotation_bytes, 2 * kAlign);
  if (layout.rotation_bytes < 2 * layout.payload_bytes)
    layout.rotation_bytes = 2 * layout.payload_bytes;
  layout.short_bytes = smaller(kMostShort, round_up(layout.payload_bytes / 4, kAlign));
  return layout;
}

void set_tuned_sizes(int ranks, uint64_t payload_bytes, uint64_t block_bytes) {
  Tuned& known = tuned();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.sizes[ranks] = {payload_bytes, block_bytes, 0};
}

}  // namespace fastcomm
