// Operations over lists, of ranks as threads: every byte of random lists, guards included, against
// the plain reference, and norms to the bit.
//
//   fused_test CASE SEED
//
//   random   lists of odd sizes, types and alignments, between other operations of the same group;
//            some lie alike on every rank, and are reduced there; some have owners, and are
//            gathered again
//   race     a few lists, for the negative controls
//   offsets  how a list is cut: every element once, into slots that are large enough
#include <cmath>
#include <limits>

#include "check.h"
#include "coll/gradient_list.h"
#include "random_values.h"
#include "rank_world.h"
#include "reference_norm.h"
#include "reference_tree.h"

namespace fastcomm::testing {
namespace {

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

/// Slots that hold a few units of the widest type.
ScratchLayout fused_layout(int size) {
  return scratch_layout({256, static_cast<uint64_t>(size) * 70 * 1024, 512}, size);
}

struct Spec {
  DType dtype, wire;
  uint64_t count;
};

struct Lists {
  GradientSpec spec;
  std::vector<Spec> tensors;
  std::vector<std::vector<std::vector<char>>> inputs;  // [tensor][rank]
  std::vector<std::vector<char>> wanted;
  bool alike = false;                // the tensors lie as on every other rank
  std::vector<ShardOffsets> shards;  // a reduce_scatter, and a gathering after it
  std::vector<double> parts;         // the parts that are wanted
};

/// Which elements of a tensor belong to whom; now and then all to everybody.
ShardOffsets random_offsets(std::mt19937_64& random, uint64_t count, int size) {
  if (random() % 8 == 0) return {};
  ShardOffsets offsets{0, count};
  for (int rank = 1; rank < size; ++rank) offsets.push_back(random() % (count + 1));
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

std::vector<char> converted(const std::vector<char>& values, DType from, DType to) {
  return from == to ? values : reference::reduce(from, to, {values}, reference::Epilogue{1, 1});
}

Lists random_lists(std::mt19937_64& random, int size) {
  constexpr uint64_t kCounts[] = {0, 1, 31, 33, 500, 4095, 4096, 4097, 9000, 30000};
  Lists lists;
  lists.spec.average = random() % 2 == 0;
  lists.spec.unscale = random() % 2 == 0 ? 1 : 1.0 / 3;
  lists.spec.norm = static_cast<NormKind>(random() % 4);
  const int tensors = static_cast<int>(random() % 6);
  for (int t = 0; t < tensors; ++t) {
    Spec spec{kFloats[random() % 4], DType::kFloat32, kCounts[random() % std::size(kCounts)]};
    spec.wire = spec.dtype;
    if (spec.dtype == DType::kFloat32)
      spec.wire = kFloats[random() % 3 == 0 ? 2 + random() % 2 : 0];
    std::vector<std::vector<char>> inputs, casts;
    for (int rank = 0; rank < size; ++rank) {
      inputs.push_back(random_values(spec.dtype, spec.count, random));
      casts.push_back(converted(inputs.back(), spec.dtype, spec.wire));
    }
    const reference::Epilogue last{lists.spec.average ? size : 1, lists.spec.unscale};
    const auto sum = reference::reduce(spec.wire, spec.wire, casts, last);
    lists.wanted.push_back(converted(sum, spec.wire, spec.dtype));
    lists.inputs.push_back(std::move(inputs));
    lists.tensors.push_back(spec);
  }
  lists.alike = random() % 2 == 0;
  if (random() % 2 == 0) {
    for (const Spec& spec : lists.tensors) {
      lists.shards.push_back(random_offsets(random, spec.count, size));
    }
  }
  for (size_t t = 0; t < lists.tensors.size(); ++t) {
    const auto values = reference::widened(lists.tensors[t].dtype, lists.wanted[t]);
    lists.parts.push_back(reference::part_of(values, lists.spec.norm));
  }
  return lists;
}

/// The tensors of one rank, between guards.
struct Memory {
  std::vector<char> block;
  std::vector<Gradient> gradients;

  Memory(const Lists& lists, int rank, std::mt19937_64& random) {
    constexpr size_t kGuard = 64;
    size_t end = kGuard;
    std::vector<size_t> at;
    for (const Spec& spec : lists.tensors) {
      const size_t element = dtype_size(spec.dtype);
      at.push_back(end + (lists.alike ? 0 : random() % 9 * element));
      end = round_up(at.back() + spec.count * element + kGuard, 8);
    }
    block.assign(end, '\x5a');
    for (size_t t = 0; t < lists.tensors.size(); ++t) {
      const auto& input = lists.inputs[t][rank];
      char* data = block.data() + at[t];
      std::copy(input.begin(), input.end(), data);
      gradients.push_back(
          {data, lists.tensors[t].count, lists.tensors[t].dtype, lists.tensors[t].wire});
    }
  }

  /// Whether a tensor's elements [begin, end) are the wanted ones, and its guards whole.
  void check(const Lists& lists, size_t t, uint64_t begin, uint64_t end, int rank) const {
    const Spec& spec = lists.tensors[t];
    const size_t element = dtype_size(spec.dtype), bytes = spec.count * element;
    const char* data = gradients[t].data;
    EXPECT(begin == end || std::memcmp(data + begin * element, &lists.wanted[t][begin * element],
                                       (end - begin) * element) == 0,
           "rank ", rank, ", tensor ", t, ", ", dtype_name(spec.dtype), " by ",
           dtype_name(spec.wire), ", elements ", begin, " to ", end, " of ", spec.count);
    EXPECT(data[-1] == '\x5a' && data[bytes] == '\x5a', "wrote beside tensor ", t);
  }
};

Call list_call(OpKind kind, const std::shared_ptr<GradientList>& list) {
  Call call;
  call.kind = kind;
  call.op = ReduceOp::kAvg;
  call.count = list->elements();
  call.gradients = list;
  return call;
}

void run_random(uint64_t seed, const std::vector<int>& sizes, int rounds) {
  std::atomic<int> direct{0};
  for (const int size : sizes) {
    RankWorld world(size, 1, static_cast<uint32_t>(-9), fused_layout(size));
    std::vector<Lists> all;
    std::mt19937_64 random(seed + size);
    for (int round = 0; round < rounds; ++round) all.push_back(random_lists(random, size));
    world.run([&](int rank) {
      std::mt19937_64 own(seed * 100 + rank);
      const auto succeed = [&](const Call& call) {
        const auto operation = carry_out(world.at(rank), call, own() % 2 == 0);
        EXPECT(operation->done() && operation->error() == nullptr, "rank ", rank);
        if (operation->direct()) ++direct;
      };
      for (const Lists& lists : all) {
        const Memory memory(lists, rank, own);
        const auto list = std::make_shared<GradientList>(memory.gradients, lists.spec);
        const bool sharded = !lists.shards.empty();
        list->shard(lists.shards);
        succeed(list_call(sharded ? OpKind::kFusedReduceScatter : OpKind::kFusedAllReduce, list));
        const std::vector<double> parts = list->parts();
        for (size_t t = 0; t < lists.tensors.size(); ++t) {
          const Spec& spec = lists.tensors[t];
          const bool owned = sharded && !lists.shards[t].empty();
          const uint64_t begin = owned ? lists.shards[t][static_cast<size_t>(rank)] : 0;
          const uint64_t end = owned ? lists.shards[t][static_cast<size_t>(rank) + 1] : spec.count;
          memory.check(lists, t, begin, end, rank);
        }
        EXPECT(
            parts.empty() || std::memcmp(parts.data(), lists.parts.data(), parts.size() * 8) == 0,
            "rank ", rank, " has other norms");
        if (sharded) {
          succeed(list_call(OpKind::kGatherShards,
                            std::make_shared<GradientList>(
                                shards_apart(memory.gradients, lists.shards), GradientSpec{})));
          for (size_t t = 0; t < lists.tensors.size(); ++t) {
            memory.check(lists, t, 0, lists.tensors[t].count, rank);
          }
        }
        float word = 1;  // the next operation uses the slots differently
        if (size > 1) world.at(rank).run(sum_call(&word, 1), kTimeout, nullptr);
        EXPECT(word == static_cast<float>(size), "sum ", word);
      }
    });
  }
  EXPECT(sizes.size() == 1 || direct > 0, "no list was reduced where it lies");
}

CASE(random) { run_random(seed, {1, 2, 3, 5, 8}, 16); }
CASE(race) { run_random(seed, {2}, 4); }

CASE(offsets) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const int size = 1 + static_cast<int>(random() % 64);
    std::vector<Gradient> tensors;
    for (int t = static_cast<int>(random() % 40); t > 0; --t) {
      const DType dtype = kFloats[random() % 4];
      const bool narrow = dtype == DType::kFloat32 && random() % 2 == 0;
      tensors.push_back(
          {nullptr, random() % (1 << random() % 18), dtype, narrow ? DType::kFloat16 : dtype});
    }
    GradientList list(tensors, GradientSpec{});
    const ScratchLayout layout =
        scratch_layout({64u << random() % 12, (random() % 3 + 1) * 40 * 1024 * size, 0}, size);
    const ScratchLayout small = scratch_layout({64, uint64_t{64} * size, 0}, size);
    for (const Gradient& tensor : tensors) {
      EXPECT(units_fit(tensor.count, tensor.wire, layout, size), "a unit does not fit");
      EXPECT(!units_fit(tensor.count, tensor.wire, small, size) || tensor.count < 64, "fits");
    }
    std::vector<ShardOffsets> shards;
    for (const Gradient& tensor : tensors)
      shards.push_back(random_offsets(random, tensor.count, size));
    if (round % 2 == 1) list.shard(shards);
    list.deal(layout, size);
    const uint64_t stage = list.stage_at(1) - list.stage_at(0);
    const uint64_t result = list.result_at(1) - list.result_at(0);
    EXPECT(list.stage_at(0) == layout.stage(0, 0) && list.result_at(0) == list.stage_at(1) + stage,
           "slots overlap");
    EXPECT(list.result_at(1) + result <= layout.total(), "slots end too late");
    uint32_t next = 0;
    uint64_t elements = 0;
    for (uint64_t b = 0; b < list.blocks(); ++b) {
      uint64_t staged = 0;
      for (int owner = 0; owner < size; ++owner) {
        EXPECT(list.begin(b, owner) == next, "a gap");
        uint64_t held = 0;
        const uint32_t begin = list.begin(b, owner);
        for (; next < list.end(b, owner); ++next) {
          const GradientUnit& unit = list.unit(next);
          EXPECT(unit.stage == staged && unit.result == held, "units overlap");
          EXPECT(unit.count > 0 && unit.count <= kNormBlock, "a unit of ", unit.count);
          staged += round_up(list.wire_bytes(unit), kLineBytes);
          held += round_up(list.wire_bytes(unit), kLineBytes);
          EXPECT(held <= list.norm_at(next - begin), "data reaches into norms");
          if (round % 2 == 1 && !shards[unit.tensor].empty()) {
            const ShardOffsets& offsets = shards[unit.tensor];
            EXPECT(offsets[owner] <= unit.first && unit.first < offsets[owner + 1],
                   "of another rank");
            uint64_t all = 0;
            for (int rank = 0; rank < size; ++rank) all += list.wanted(unit, rank).count;
            EXPECT(all == unit.count, "wanted twice, or not at all");
          }
          elements += unit.count;
        }
      }
      EXPECT(staged <= stage && staged > 0, "a block of ", staged);
    }
    EXPECT(next == list.units() && elements == list.elements(), "units are missing");
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
