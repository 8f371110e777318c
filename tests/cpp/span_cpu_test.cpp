// What the CPU executor writes to slots and tensors, where lines are near and where they are far:
// the same bytes.
//
//   span_cpu_test [CASE [SEED]]
#include "kernels/span_cpu.h"

#include "check.h"
#include "core/numeric.h"

namespace fastcomm::testing {
namespace {

constexpr StagedTo kNear{Clock::duration::max()}, kFar{Clock::duration(-1)};

std::vector<float> some_floats(std::mt19937_64& random, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = bits_float(static_cast<uint32_t>(random()));
  return values;
}

size_t some_count(std::mt19937_64& random) {
  return random() % (random() % 2 == 0 ? 20'000 : 100'000);
}

/// Gradients are rounded on their way to a slot, with and without a residual.
CASE(slots) {
  std::mt19937_64 random(seed);
  const PeerView alone;
  for (int repeat = 0; repeat < 100; ++repeat) {
    const size_t count = some_count(random), at = random() % 64;
    const std::vector<float> from = some_floats(random, count);
    std::vector<float> residual = some_floats(random, count), residual_wanted = residual;
    const bool fed = repeat % 2 == 0, for_peers = repeat % 3 != 0;
    const DType type = random() % 2 == 0 ? DType::kFloat16 : DType::kBFloat16;
    std::vector<uint16_t> slot(at + count + 64, 7), wanted = slot;
    if (fed) {
      feedback_function(type)(wanted.data() + at, from.data(), residual_wanted.data(), count);
    } else {
      convert_function(type, DType::kFloat32)(wanted.data() + at, from.data(), count);
    }
    CpuExecutor executor(alone, nullptr, nullptr, 1);
    executor.convert_to_slot(slot.data() + at, type, from.data(), DType::kFloat32,
                             fed ? residual.data() : nullptr, count, for_peers,
                             repeat % 4 < 2 ? kNear : kFar);
    EXPECT(slot == wanted, count, " elements", fed ? " with a residual" : "");
    EXPECT(std::memcmp(residual.data(), residual_wanted.data(), count * sizeof(float)) == 0,
           "residuals of ", count);
  }
}

/// A sum goes to a tensor and to a slot.
CASE(sums) {
  std::mt19937_64 random(seed);
  PeerView two;
  two.size = 2;
  for (int repeat = 0; repeat < 100; ++repeat) {
    const size_t count = some_count(random), at = random() % 32;
    std::vector<float> sources[2];
    for (auto& source : sources) {
      source.resize(count);
      for (float& value : source) value = static_cast<float>(random() % 1000);
    }
    std::vector<float> wanted(at + count + 32, -1), slot = wanted, tensor = wanted;
    for (size_t i = 0; i < count; ++i) wanted[at + i] = sources[0][i] + sources[1][i];
    CpuExecutor executor(two, nullptr, reduce_function(DType::kFloat32, ReduceOp::kSum), 1);
    executor.reduce_span(
        tensor.data() + at, slot.data() + at,
        [&](int peer) { return reinterpret_cast<const char*>(sources[peer].data()); }, count,
        sizeof(float), repeat % 2 == 0 ? kNear : kFar);
    EXPECT(tensor == wanted, "the tensor's ", count);
    EXPECT(slot == wanted, "the slot's ", count);
  }
}

/// The same for a piece of a gradient, which goes the way of what was staged before it.
CASE(pieces) {
  std::mt19937_64 random(seed);
  PeerView two;
  two.size = 2;
  std::vector<char> before(64 * 1024), staged(before.size());
  for (int repeat = 0; repeat < 100; ++repeat) {
    const size_t count = random() % 513, at = random() % 32;
    const std::vector<float> ones(count, 1), twos(count, 2);
    std::vector<float> wanted(at + count + 32, -1), slot = wanted, tensor = wanted;
    for (size_t i = 0; i < count; ++i) wanted[at + i] = 1.5f;
    CpuExecutor executor(two, nullptr, nullptr, 1);
    executor.stage_span(staged.data(), before.data(), before.size(),
                        repeat % 2 == 0 ? kNear : kFar);
    executor.reduce_typed_span(
        reduce_function(DType::kFloat32, ReduceOp::kSum), tensor.data() + at, slot.data() + at,
        count * sizeof(float),
        [&](int peer) {
          return reinterpret_cast<const char*>(peer == 0 ? ones.data() : twos.data());
        },
        count, 2, 1);
    EXPECT(tensor == wanted, "the tensor's ", count);
    EXPECT(slot == wanted, "the slot's ", count);
  }
}

/// Copies to tensors at any address, through the caches and past them.
CASE(copies) {
  std::mt19937_64 random(seed);
  const PeerView alone;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const size_t bytes = some_count(random), at = random() % 64;
    std::vector<char> from(bytes);
    for (char& byte : from) byte = static_cast<char>(random());
    std::vector<char> to(at + bytes + 64, 1), wanted = to;
    std::copy(from.begin(), from.end(), wanted.begin() + static_cast<long>(at));
    CpuExecutor executor(alone, nullptr, nullptr, 1);
    if (repeat % 2 == 0) executor.copies_past_caches();
    executor.copy_span(to.data() + at, from.data(), bytes);
    EXPECT(to == wanted, bytes, " bytes at ", at);
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
