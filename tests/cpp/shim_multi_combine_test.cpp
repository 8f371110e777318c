// The batched MIN, MAX, PRODUCT, PREMUL_SUM, BAND, BOR and BXOR to the bit, against the CPU's
// loops, guards included; on the host under the execution shim, or on a GPU when compiled by nvcc.
//
//   shim_multi_combine_test [CASE [SEED]]     CASE: bits | tables | exact | failed | race | refused
//
// exact is for AddressSanitizer: sources that end where their memory ends. race is the short
// program that ThreadSanitizer watches. NaN payloads of sums and products are not compared.
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "device_memory.h"
#include "dtypes.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/multi_combine.h"
#include "kernels/reduce_cpu.h"
#include "random_values.h"
#include "reference_plain.h"
#include "special_values.h"

namespace fastcomm::testing {
namespace {

/// Bytes of a source that a block moves at once.
constexpr uint64_t kChunk = uint64_t{kTableThreads} * kPackBytes;

std::string describe(const CombineSpec& spec) {
  return concat(reduce_op_name(spec.op), " of ", dtype_name(spec.dtype), ", ", spec.num_sources,
                " to ", spec.num_destinations, ", factor ", spec.factor);
}

/// Calls use(dtype, op) for all that this build's kernels reduce; returns how many there are.
template <class Use>
int for_each_kernel(const Use& use) {
  int found = 0;
  for (const DType dtype : kDTypes) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      const CombineSpec spec{dtype, static_cast<ReduceOp>(op), 2, 1};
      ErrorCode code{};
      if (!error_of([&] { check_multi_combine(spec); }, &code).empty()) continue;
      use(dtype, spec.op);
      ++found;
    }
  }
  return found;
}

/// Offsets of a tensor's buffers from aligned addresses; kApart: equal for all sources alone.
enum class Offsets { kAligned, kAlike, kApart, kAnyhow };
constexpr int kNumOffsets = 4;

struct Tensor {
  uint64_t count;
  Offsets offsets;
  bool in_place;  // destination d is source d, as far as both exist
};

std::vector<char> values_of(const CombineSpec& spec, uint64_t count, std::mt19937_64& random) {
  const bool sums = spec.op == ReduceOp::kPremulSum && random() % 2 == 0;
  return sums ? random_values(spec.dtype, count, random)
              : special_input(spec.dtype, count, random());
}

std::vector<char> by_cpu(const CombineSpec& spec, const std::vector<std::vector<char>>& inputs,
                         uint64_t count) {
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<char> wanted(inputs[0].size());
  const int divisor = spec.op == ReduceOp::kAvg ? spec.num_sources : 1;
  reduce_function(spec.dtype, spec.op)(
      {wanted.data(), nullptr, sources.data(), spec.num_sources, count, divisor, 1, spec.factor});
  return wanted;
}

/// True if a NaN in the results may have any payload.
bool has_payloads(const CombineSpec& spec) {
  return spec.op == ReduceOp::kProduct || spec.op == ReduceOp::kPremulSum;
}

/// Reduces all tensors by one call and compares every byte of the memory they lie in. If
/// `failed`, no byte may change.
void reduce_tensors(const std::vector<Tensor>& tensors, const CombineSpec& spec,
                    std::mt19937_64& random, bool failed = false) {
  const size_t element = dtype_size(spec.dtype);
  Arena arena;
  std::vector<std::vector<size_t>> sources, destinations;
  for (const Tensor& tensor : tensors) {
    const size_t bytes = tensor.count * element;
    const auto offset = [&, alike = random() % 16](bool is_source) -> size_t {
      if (tensor.offsets == Offsets::kAligned) return 0;
      const bool same =
          tensor.offsets == Offsets::kAlike || (tensor.offsets == Offsets::kApart && is_source);
      return (same ? alike : random() % 16) / element * element;
    };
    sources.emplace_back();
    destinations.emplace_back();
    for (int j = 0; j < spec.num_sources; ++j) {
      sources.back().push_back(arena.add(bytes, offset(true)));
    }
    for (int d = 0; d < spec.num_destinations; ++d) {
      const bool same = tensor.in_place && d < spec.num_sources;
      destinations.back().push_back(same ? sources.back()[d] : arena.add(bytes, offset(false)));
    }
  }
  const size_t state = arena.add(sizeof(ChannelState), 0, alignof(ChannelState));
  ChannelState channel{};
  channel.failed = failed;
  std::memcpy(arena.host(state), &channel, sizeof(channel));
  std::vector<std::vector<std::vector<char>>> inputs(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const size_t at : sources[i]) {
      inputs[i].push_back(values_of(spec, tensors[i].count, random));
      std::copy(inputs[i].back().begin(), inputs[i].back().end(), arena.host(at));
    }
  }
  arena.upload();

  std::vector<std::vector<const void*>> from(tensors.size());
  std::vector<std::vector<void*>> to(tensors.size());
  std::vector<ReduceSegment> segments;
  std::vector<std::pair<size_t, size_t>> results;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const size_t at : sources[i]) from[i].push_back(arena.device(at));
    for (const size_t at : destinations[i]) to[i].push_back(arena.device(at));
    segments.push_back({from[i].data(), to[i].data(), tensors[i].count});
    if (failed) continue;
    std::vector<char> wanted = by_cpu(spec, inputs[i], tensors[i].count);
    if (has_payloads(spec)) reference::forget_payloads(spec.dtype, wanted.data(), wanted.size());
    for (const size_t at : destinations[i]) {
      std::copy(wanted.begin(), wanted.end(), arena.host(at));
      results.emplace_back(at, wanted.size());
    }
  }
  const auto* const device_state = reinterpret_cast<ChannelState*>(arena.device(state));
  launch_multi_combine(segments.data(), static_cast<int>(segments.size()), spec, nullptr,
                       random() % 2 == 0 || failed ? device_state : nullptr);
  const long wrong = arena.first_difference([&](char* got) {
    if (!has_payloads(spec)) return;
    for (const auto& [at, bytes] : results) {
      reference::forget_payloads(spec.dtype, got + at, bytes);
    }
  });
  EXPECT(wrong < 0, describe(spec), ": ", tensors.size(), " tensors, the first of ",
         tensors.empty() ? 0 : tensors[0].count, ": byte ", wrong);
}

CombineSpec random_spec(DType dtype, ReduceOp op, int num_sources, std::mt19937_64& random) {
  CombineSpec spec{dtype, op, num_sources, 1 + static_cast<int>(random() % 3)};
  if (random() % 8 == 0) spec.num_destinations = kMaxReduceSources;
  const double factors[] = {1, 0.5, 1.0 / 3, -0.0, 1e-7};
  if (op == ReduceOp::kPremulSum) spec.factor = factors[random() % 5];
  return spec;
}

/// Every type and reduction, any number of sources, sizes around the limits of packs and chunks.
CASE(bits) {
  std::mt19937_64 random(seed);
  const int found = for_each_kernel([&](DType dtype, ReduceOp op) {
    const uint64_t pack = kPackBytes / dtype_size(dtype), chunk = kChunk / dtype_size(dtype);
    for (int n = 1; n <= kMaxReduceSources; ++n) {
      std::vector<Tensor> tensors;
      for (int i = 0; i < kNumOffsets; ++i) {
        const uint64_t around[] = {0, pack, chunk, 3 * chunk};
        const uint64_t count = around[(i + n) % 4] + random() % (2 + pack);
        tensors.push_back({count, static_cast<Offsets>(i), random() % 3 == 0});
      }
      reduce_tensors(tensors, random_spec(dtype, op, n, random), random);
    }
  });
#if defined(FC_FEW_KERNELS)
  EXPECT(found == 4 + 2, found);  // the rest of int8 is uint8's
#else
  // 4 floats by MIN, MAX, PRODUCT and PREMUL_SUM; 9 others by MIN, MAX, PRODUCT and bits, 3 of them
  // by SUM and AVG.
  EXPECT(found == 4 * 4 + 9 * 6 + 3 * 2, found);
#endif
}

/// More tensors than a launch takes.
CASE(tables) {
  std::mt19937_64 random(seed);
  for (const int n : {1, 2, 16}) {
    for (const int count : {0, 1, 13, 14, 15, 100, 126}) {
      std::vector<Tensor> tensors;
      for (int i = 0; i < count; ++i) {
        const uint64_t elements = random() % 5 == 0 ? 0 : random() % (1 + random() % 60);
        tensors.push_back(
            {elements, static_cast<Offsets>(random() % kNumOffsets), random() % 2 == 0});
      }
      reduce_tensors(tensors, random_spec(DType::kInt8, ReduceOp::kMax, n, random), random);
    }
  }
}

/// No byte is read before or after a source, or written beside a destination.
CASE(exact) {
#if defined(FC_SHIM)
  std::mt19937_64 random(seed);
  for (const auto& [dtype, op] : {std::pair{DType::kFloat32, ReduceOp::kMin},
                                  {DType::kFloat32, ReduceOp::kProduct},
                                  {DType::kInt8, ReduceOp::kMax}}) {
    const uint64_t element = dtype_size(dtype);
    for (const int n : {1, 3, 9}) {
      for (const uint64_t count : {uint64_t{1}, uint64_t{5}, uint64_t{37}, kChunk + 3}) {
        const CombineSpec spec{dtype, op, n, 1};
        const uint64_t alike = random() % 16 / element * element;
        std::vector<std::unique_ptr<char[]>> memory;
        std::vector<std::vector<char>> inputs;
        std::vector<const void*> sources;
        for (int j = 0; j < n; ++j) {
          inputs.push_back(values_of(spec, count, random));
          memory.push_back(std::make_unique<char[]>(alike + count * element));
          std::copy(inputs[j].begin(), inputs[j].end(), memory[j].get() + alike);
          sources.push_back(memory[j].get() + alike);
        }
        const uint64_t offset = random() % 16 / element * element;
        memory.push_back(std::make_unique<char[]>(offset + count * element));
        void* const to = memory[n].get() + offset;
        const ReduceSegment segment{sources.data(), &to, count};
        launch_multi_combine(&segment, 1, spec, nullptr);
        std::vector<char> wanted = by_cpu(spec, inputs, count);
        if (has_payloads(spec)) {
          reference::forget_payloads(dtype, wanted.data(), wanted.size());
          reference::forget_payloads(dtype, static_cast<char*>(to), wanted.size());
        }
        EXPECT(std::memcmp(to, wanted.data(), wanted.size()) == 0, describe(spec), ": ", count);
      }
    }
  }
#endif
}

/// After a failure nothing is written.
CASE(failed) {
  std::mt19937_64 random(seed);
  for (const bool in_place : {false, true}) {
    reduce_tensors({{kChunk, Offsets::kAligned, in_place}, {100, Offsets::kAnyhow, in_place}},
                   {DType::kFloat32, ReduceOp::kMax, 3, 2}, random, true);
  }
}

CASE(race) {
  std::mt19937_64 random(seed);
  for (const int n : {2, 3, 11}) {
    std::vector<Tensor> tensors = {{3 * kChunk / 4, Offsets::kAligned, true},
                                   {900, Offsets::kAlike, true},
                                   {900, Offsets::kApart, false},
                                   {900, Offsets::kAnyhow, true}};
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(
          {random() % 60, static_cast<Offsets>(random() % kNumOffsets), random() % 2 == 0});
    }
    const ReduceOp op = n == 2 ? ReduceOp::kPremulSum : ReduceOp::kMin;
    reduce_tensors(tensors, random_spec(DType::kFloat32, op, n, random), random);
  }
}

CASE(refused) {
  alignas(16) static char memory[64];
  const auto refusal = [&](const CombineSpec& spec, int count = 1, size_t source = 0,
                           size_t destination = 0) {
    const std::vector<const void*> sources(20, memory + source);
    const std::vector<void*> destinations(20, memory + destination);
    const uint64_t elements = source + destination == 0 ? 0 : 4;
    const ReduceSegment segment{sources.data(), destinations.data(), elements};
    ErrorCode code = ErrorCode::kSystem;  // unless the call is refused
    const std::string text =
        error_of([&] { launch_multi_combine(&segment, count, spec, nullptr); }, &code);
    return std::pair{code, text};
  };
  const auto code_of = [&](auto... arguments) { return refusal(arguments...).first; };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
  constexpr DType kF32 = DType::kFloat32;
  constexpr ReduceOp kMax = ReduceOp::kMax;
  EXPECT(code_of(CombineSpec{kF32, kMax, 2, 1}) == ErrorCode::kSystem, "a call with no elements");
  EXPECT(code_of(CombineSpec{kF32, kMax, 2, 1}, -1) == kInvalid, "a negative count");
  EXPECT(code_of(CombineSpec{kF32, kMax, 0, 1}) == kInvalid, "no sources");
  EXPECT(code_of(CombineSpec{kF32, kMax, 17, 1}) == kInvalid, "too many sources");
  EXPECT(code_of(CombineSpec{kF32, kMax, 1, 0}) == kInvalid, "no destinations");
  EXPECT(code_of(CombineSpec{kF32, kMax, 1, 17}) == kInvalid, "too many destinations");
  EXPECT(code_of(CombineSpec{kF32, kMax, 2, 1}, 1, size_t{2}) == kInvalid, "misaligned source");
  EXPECT(code_of(CombineSpec{kF32, kMax, 2, 1}, 1, size_t{0}, size_t{2}) == kInvalid,
         "misaligned destination");
  EXPECT(code_of(CombineSpec{DType::kOther, kMax, 2, 1}) == kUnsupported, "bytes");
  EXPECT(code_of(CombineSpec{kF32, ReduceOp::kNone, 2, 1}) == kUnsupported, "no reduction");
  const auto [code, text] = refusal(CombineSpec{kF32, ReduceOp::kBand, 2, 1});
  EXPECT(code == kUnsupported && text.find("band of float32: bits of int") != std::string::npos,
         text);
  EXPECT(refusal(CombineSpec{kF32, ReduceOp::kSum, 2, 1}).second.find("use multi_reduce") !=
             std::string::npos,
         "sums have kernels of their own");
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
