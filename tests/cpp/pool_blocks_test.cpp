// Which pieces of segments are free (transport/ipc/pool_blocks.h), against a table of all granules.
//
//   pool_blocks_test random [SEED]
#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "transport/ipc/pool_blocks.h"

namespace fastcomm::testing {
namespace {

constexpr uint64_t kGranule = PoolBlocks::kGranule;

struct Granule {
  bool taken = false;
  std::optional<int64_t> stream;  // whose it is
};

struct Run {
  int segment;
  uint64_t first, length;
};

class Reference {
 public:
  void add(uint64_t granules) { segments_.emplace_back(granules); }

  /// That owner's smallest run of at least `wanted` free granules; of several the first.
  std::optional<Run> find(uint64_t wanted, std::optional<int64_t> owner) const {
    std::optional<Run> best;
    for (size_t s = 0; s < segments_.size(); ++s) {
      const auto& all = segments_[s];
      for (uint64_t begin = 0; begin < all.size();) {
        uint64_t end = begin;
        while (end < all.size() && !all[end].taken && all[end].stream == owner) ++end;
        const bool fits = end > begin && end - begin >= wanted;
        if (fits && (!best || end - begin < best->length)) {
          best = Run{static_cast<int>(s), begin, end - begin};
        }
        begin = std::max(end, begin + 1);
      }
    }
    return best;
  }
  void set(const PoolBlocks::Block& block, bool taken, int64_t stream) {
    for (uint64_t i = 0; i < block.bytes / kGranule; ++i) {
      segments_[block.segment][block.offset / kGranule + i] = {taken, stream};
    }
  }

 private:
  std::vector<std::vector<Granule>> segments_;
};

CASE(random) {
  std::mt19937_64 random(seed);
  PoolBlocks blocks;
  Reference reference;
  struct Out {
    PoolBlocks::Block block;
    int64_t stream;
  };
  std::vector<Out> out;
  int segments = 0, refused = 0, again = 0;
  EXPECT(!blocks.take(1, 0), "there is nothing yet");
  for (int step = 0; step < 4000; ++step) {
    if (segments == 0 || (segments < 6 && random() % 200 == 0)) {
      const uint64_t granules = 1 + random() % 60;
      blocks.add(segments++, granules * kGranule);
      reference.add(granules);
    }
    if (random() % 2 == 0) {
      const uint64_t bytes = 1 + random() % (random() % 4 == 0 ? 40 * kGranule : 4 * kGranule);
      const auto stream = static_cast<int64_t>(random() % 3);
      const uint64_t wanted = PoolBlocks::rounded(bytes) / kGranule;
      auto run = reference.find(wanted, stream);
      again += run.has_value();
      if (!run) run = reference.find(wanted, std::nullopt);
      const auto block = blocks.take(bytes, stream);
      EXPECT(block.has_value() == run.has_value(), "step ", step, ": ", bytes, " bytes");
      if (!block || !run) {
        ++refused;
        continue;
      }
      EXPECT(block->segment == run->segment && block->offset == run->first * kGranule, "step ",
             step, ": the smallest piece, and its begin");
      EXPECT(block->bytes == wanted * kGranule, "step ", step, ": as much as is wanted");
      reference.set(*block, true, stream);
      out.push_back({*block, stream});
    } else if (!out.empty()) {
      const size_t which = random() % out.size();
      const Out each = out[which];
      out.erase(out.begin() + static_cast<long>(which));
      blocks.give(each.block, each.stream);
      reference.set(each.block, false, each.stream);
    }
  }
  EXPECT(refused > 10 && again > 100, "all of it is tried: ", refused, ", ", again);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
