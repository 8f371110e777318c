// Where slots lie, and how large they are (coll/slot_sizes.h, ScratchLayout in coll/plan.h).
//
//   slot_sizes_test [CASE [SEED]]
#include "coll/slot_sizes.h"

#include "check.h"

namespace fastcomm::testing {
namespace {

struct Place {
  uint64_t at, bytes;
  bool meets(const Place& other) const {
    return at < other.at + other.bytes && other.at < at + bytes;
  }
};

uint64_t up_to(std::mt19937_64& random, uint64_t most) { return 1 + random() % most; }

/// Places of one kind: within the scratch, aligned, and consecutive ones apart; returns how many
/// there are before the first comes again.
template <class At>
uint64_t rotation(const ScratchLayout& layout, uint64_t bytes, const At& at) {
  uint64_t again = 0;
  for (uint64_t turn = 0; turn < 100; ++turn) {
    const Place here{at(turn), bytes}, next{at(turn + 1), bytes};
    EXPECT(here.at % ScratchLayout::kSlotAlign == 0, "unaligned: ", here.at);
    EXPECT(here.at + bytes <= layout.total(), here.at, "+", bytes, " of ", layout.total());
    EXPECT(!here.meets(next), "turn ", turn, " at ", here.at, " meets the next at ", next.at);
    if (again == 0 && next.at == at(0)) again = turn + 1;
  }
  return again;
}

CASE(places) {
  std::mt19937_64 random(seed);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const int size = static_cast<int>(2 + random() % 63);
    const SlotSizes sizes{up_to(random, 1 << 22), up_to(random, 1 << 22), random() % (1 << 24)};
    const ScratchLayout layout = scratch_layout(sizes, size);
    EXPECT(layout.payload_bytes >= sizes.payload_bytes && layout.block_bytes >= sizes.block_bytes,
           "too small");
    const uint64_t payload = up_to(random, layout.payload_bytes);
    const uint64_t block = up_to(random, layout.block_bytes);
    const uint64_t slice = up_to(random, layout.result_bytes);
    const auto payload_at = [&](uint64_t n) { return layout.payload(n, payload); };
    const auto stage_at = [&](uint64_t n) { return layout.stage(n, block); };
    const auto result_at = [&](uint64_t n) { return layout.result(n, slice); };
    rotation(layout, payload, payload_at);
    rotation(layout, block, stage_at);
    rotation(layout, slice, result_at);
    rotation(layout, layout.table_bytes, [&](uint64_t n) { return layout.table(n); });
    // Slots of one step and of blocks are in use at once, and so are those of operations of
    // different sizes in turn.
    const uint64_t other = up_to(random, layout.payload_bytes);
    for (uint64_t n = 0; n < 20; ++n) {
      const Place here{payload_at(n), payload}, before{layout.payload(n + 1, other), other};
      EXPECT(!here.meets(before), "of ", payload, " and ", other, " bytes, ", n);
      const Place stage{stage_at(n), block}, result{result_at(n), slice};
      const Place table{layout.table(n), layout.table_bytes};
      EXPECT(!here.meets(stage) && !here.meets(result) && !stage.meets(result), "kinds meet");
      EXPECT(!table.meets(here) && !table.meets(stage) && !table.meets(result), "a table is met");
      EXPECT(here.at + payload <= layout.in_one_step(payload), "more than is reserved");
      EXPECT(table.at + table.bytes <= layout.in_one_step(payload), "more than is reserved");
    }
  }
}

/// Slots return to a line once as much as the rotation holds has been written.
CASE(turns) {
  const ScratchLayout layout = scratch_layout({1 << 20, 1 << 21, 1 << 22}, 2);
  const auto payloads = [&](uint64_t bytes) {
    return rotation(layout, bytes, [&](uint64_t n) { return layout.payload(n, bytes); });
  };
  const auto stages = [&](uint64_t bytes) {
    return rotation(layout, bytes, [&](uint64_t n) { return layout.stage(n, bytes); });
  };
  EXPECT(payloads(8) == 2 && payloads(1024) == 2, "of short messages");
  EXPECT(payloads(1 << 20) == 4 && payloads(1 << 17) == 32, "of long messages");
  EXPECT(stages(1 << 21) == 2 && stages(1 << 18) == 16, "of blocks");
}

/// What is measured (core/tuning.h) holds for its number of ranks.
CASE(tuned) {
  const ChosenSizes two = choose_slot_sizes(2), five = choose_slot_sizes(5);
  EXPECT(two.payload_by == ChosenBy::kDefault && five.payload_by == ChosenBy::kDefault,
         "nothing is set");
  EXPECT(two.sizes.payload_bytes > five.sizes.payload_bytes, "two ranks read as much either way");
  set_tuning(5, {4096});
  const ChosenSizes set = choose_slot_sizes(5);
  EXPECT(set.payload_by == ChosenBy::kTuning && set.sizes.payload_bytes == 4096, "as tuned");
  EXPECT(set.sizes.block_bytes == five.sizes.block_bytes, "what was not tuned is as it was");
  EXPECT(choose_slot_sizes(2).payload_by == ChosenBy::kDefault, "for five ranks only");
  set_tuning(5, {0, 1 << 19});
  EXPECT(choose_slot_sizes(5).sizes.payload_bytes == five.sizes.payload_bytes, "forgotten");
  EXPECT(choose_slot_sizes(5).sizes.block_bytes == 1 << 19, "blocks as tuned");
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
