// The batched reduction to the bit, against the plain tree of reference_tree.h, guards included; on
// the host under the execution shim, or on a GPU when compiled by nvcc.
//
//   shim_multi_reduce_test [CASE [SEED]]     CASE: sums | negative_zeros | lies | exact |
//                                            tables | conversions | race | refused | large
//
// lies says which tensors need not be reduced element by element. exact is for AddressSanitizer:
// sources that end where their memory ends. race is the short program that ThreadSanitizer watches.
// large needs a GPU, and does nothing without one.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "device_memory.h"
#include "dtypes.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/multi_reduce.h"
#include "kernels/cuda/reduce_table.h"
#include "random_values.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fastcomm::testing {
namespace {

/// The most bytes of a source that a block moves at once.
constexpr uint64_t kChunk = uint64_t{kTableThreads} * kPacksInFlight * 2 * kPackBytes;

std::string describe(const ReduceSpec& spec) {
  return concat(dtype_name(spec.in), " to ", dtype_name(spec.out), ", ", spec.num_sources, " to ",
                spec.num_destinations, ", / ", spec.divisor, " * ", spec.scale);
}

/// How a segment's buffers lie to each other.
enum class Buffers { kAligned, kAlike, kAnyhow };

struct Tensor {
  uint64_t count;
  Buffers lie;
  bool in_place;  // destination d is source d, as far as both exist
};

/// Reduces all tensors by one call and compares every byte of the memory they lie in.
void reduce_tensors(const std::vector<Tensor>& tensors, const ReduceSpec& spec,
                    std::mt19937_64& random, const std::vector<char>* values = nullptr) {
  const size_t in_size = dtype_size(spec.in), out_size = dtype_size(spec.out);
  Arena arena;
  std::vector<std::vector<size_t>> sources, destinations;
  for (const Tensor& tensor : tensors) {
    const auto offset = [&, alike = random() % 16](size_t size) -> size_t {
      if (tensor.lie == Buffers::kAligned) return 0;
      return (tensor.lie == Buffers::kAlike ? alike : random() % 16) / size * size;
    };
    sources.emplace_back();
    destinations.emplace_back();
    for (int j = 0; j < spec.num_sources; ++j) {
      sources.back().push_back(arena.add(tensor.count * in_size, offset(in_size)));
    }
    for (int d = 0; d < spec.num_destinations; ++d) {
      const bool same = tensor.in_place && in_size == out_size && d < spec.num_sources;
      destinations.back().push_back(same ? sources.back()[d]
                                         : arena.add(tensor.count * out_size, offset(out_size)));
    }
  }
  std::vector<std::vector<std::vector<char>>> inputs(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const size_t at : sources[i]) {
      inputs[i].push_back(values ? *values : random_values(spec.in, tensors[i].count, random));
      std::copy(inputs[i].back().begin(), inputs[i].back().end(), arena.host(at));
    }
  }
  arena.upload();

  std::vector<std::vector<const void*>> from(tensors.size());
  std::vector<std::vector<void*>> to(tensors.size());
  std::vector<ReduceSegment> segments;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const size_t at : sources[i]) from[i].push_back(arena.device(at));
    for (const size_t at : destinations[i]) to[i].push_back(arena.device(at));
    segments.push_back({from[i].data(), to[i].data(), tensors[i].count});
    const std::vector<char> wanted = reference::reduce(
        spec.in, spec.out, inputs[i], reference::Epilogue{spec.divisor, spec.scale});
    for (const size_t at : destinations[i]) {
      std::copy(wanted.begin(), wanted.end(), arena.host(at));
    }
  }
#if defined(FC_SHIM)
  shim::last_launch = {};
#endif
  launch_multi_reduce(segments.data(), static_cast<int>(segments.size()), spec, nullptr);
  const long wrong = arena.first_difference();
#if defined(FC_SHIM)
  if (spec.num_sources + spec.num_destinations <= 3 && tensors.size() <= 256) {
    EXPECT(shim::last_launch.parameter_bytes <= 10400, tensors.size(), " tensors take ",
           shim::last_launch.parameter_bytes, " bytes of parameters");
  }
#endif
  EXPECT(wrong < 0, describe(spec), ": ", tensors.size(), " tensors, the first of ",
         tensors.empty() ? 0 : tensors[0].count, ": byte ", wrong);
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat64 ||
         std::count(kKernelFloats.begin(), kKernelFloats.end(), dtype) != 0;
}

/// A random divisor and scale; small enough that sums reach the range of fp16.
ReduceSpec random_spec(DType in, DType out, int num_sources, std::mt19937_64& random) {
  ReduceSpec spec{in, out, num_sources, 1 + static_cast<int>(random() % 3)};
  if (random() % 4 == 0) spec.num_destinations = 1 + static_cast<int>(random() % kMaxReduceSources);
  const int divisors[] = {1, num_sources, 1 + static_cast<int>(random() % 100)};
  spec.divisor = divisors[random() % 3];
  const double part = 1 + static_cast<double>(random() % 1000) / 1000;
  if (is_float(in) && random() % 2 == 0) spec.scale = part;
  if (is_float(in) && in != out && out == DType::kFloat16) spec.scale = std::ldexp(part, -16);
  return spec;
}

/// Any number of sources, every pair of types, sizes around the limits of packs and chunks.
CASE(sums) {
  std::mt19937_64 random(seed);
  const auto pair = [&](DType in, DType out) {
    const uint64_t size = std::min(dtype_size(in), dtype_size(out));
    for (int n = 1; n <= kMaxReduceSources; ++n) {
      std::vector<Tensor> tensors;
      for (const uint64_t around :
           {uint64_t{0}, kPackBytes / size, kChunk / 8 / size, kChunk / size, 3 * kChunk / size}) {
        for (int k = 0; k < 2; ++k) {
          const uint64_t count = around + random() % (2 + kPackBytes / size);
          const Buffers lie = static_cast<Buffers>(random() % 3);
          tensors.push_back({kOnDevice ? count / 4 : count, lie, random() % 3 == 0});
        }
      }
      reduce_tensors(tensors, random_spec(in, out, n, random), random);
    }
  };
  for (const DType dtype : kKernelDTypes) pair(dtype, dtype);
  for (const DType in : kKernelFloats) {
    for (const DType out : kKernelFloats) {
      if (in != out) pair(in, out);
    }
  }
}

/// -0 from every source stays -0: an absent leaf of the tree is not a zero that is added.
CASE(negative_zeros) {
  std::mt19937_64 random(seed);
  std::vector<char> values(33 * sizeof(float));
  for (size_t i = 0; i < values.size(); i += sizeof(float)) values[i + 3] = '\x80';
  for (int n = 1; n <= kMaxReduceSources; ++n) {
    const ReduceSpec spec{DType::kFloat32, DType::kFloat32, n, 1};
    reduce_tensors({{33, Buffers::kAligned, false}}, spec, random, &values);
  }
}

/// Memory of unlike alignments moves in packs too, unless a source is also written: then what a
/// thread reads beside its own pack would be another's.
CASE(lies) {
  alignas(64) static char memory[256];
  char* const a = memory;
  char* const b = memory + 64;
  char* const c = memory + 128;
  const auto lie = [](std::vector<const void*> sources, std::vector<void*> destinations,
                      DType in = DType::kFloat32, DType out = DType::kFloat32) {
    const ReduceSpec spec{in, out, static_cast<int>(sources.size()),
                          static_cast<int>(destinations.size())};
    return head_with_shifts({sources.data(), destinations.data(), 8}, spec);
  };
  EXPECT(lie({a + 4, b + 4}, {c + 4}).packed == kAlike, "one alignment");
  EXPECT(lie({a + 4, b + 4}, {c + 4}).lead == 1, "from a pack to the begin");
  EXPECT(lie({a, b + 4}, {c + 8}).packed == kShifted, "any alignment");
  EXPECT(lie({a, b + 4}, {c + 8}).lead == 2, "of the destination");
  EXPECT(lie({a, b + 4}, {c, c + 68}).packed == kShifted, "of destinations too");
  EXPECT(lie({a, b + 4}, {a}).packed == kShifted, "in place, in the first destination");
  EXPECT(lie({b + 4, a}, {a, b + 4}).packed == kSingle, "in place, in another one");
  EXPECT(lie({b + 4, a}, {a, b}).packed == kShifted, "not the same place");
  const DType wide = DType::kFloat32, narrow = DType::kBFloat16;
  EXPECT(lie({a, b}, {c}, wide, narrow).packed == kAlike, "two sizes, all aligned");
  EXPECT(lie({a + 4, b}, {c + 6}, wide, narrow).packed == kShifted, "to a narrower type");
  EXPECT(lie({a + 2, b}, {c + 4}, narrow, wide).packed == kShifted, "to a wider type");
}

/// No byte is read before or after a source, wherever it begins and ends.
CASE(exact) {
#if defined(FC_SHIM)
  std::mt19937_64 random(seed);
  for (const auto& [in, out] : {std::pair{DType::kFloat32, DType::kFloat32},
                                {DType::kBFloat16, DType::kBFloat16},
                                {DType::kBFloat16, DType::kFloat32},
                                {DType::kFloat32, DType::kBFloat16}}) {
    const uint64_t in_size = dtype_size(in), out_size = dtype_size(out);
    for (const int n : {1, 2, 3, 9}) {
      for (const uint64_t count : {uint64_t{5}, uint64_t{37}, kChunk / 8, kChunk + 3}) {
        std::vector<std::unique_ptr<char[]>> memory;
        std::vector<std::vector<char>> inputs;
        std::vector<const void*> sources;
        for (int j = 0; j < n; ++j) {
          const uint64_t offset = random() % 16 / in_size * in_size;
          inputs.push_back(random_values(in, count, random));
          memory.push_back(std::make_unique<char[]>(offset + count * in_size));
          std::copy(inputs[j].begin(), inputs[j].end(), memory[j].get() + offset);
          sources.push_back(memory[j].get() + offset);
#if defined(__SANITIZE_ADDRESS__)
          __asan_poison_memory_region(memory[j].get(), offset / 8 * 8);
#endif
        }
        const uint64_t offset = random() % 16 / out_size * out_size;
        memory.push_back(std::make_unique<char[]>(offset + count * out_size));
        void* const to = memory[n].get() + offset;
        const ReduceSegment segment{sources.data(), &to, count};
        const ReduceSpec spec{in, out, n, 1};
        launch_multi_reduce(&segment, 1, spec, nullptr);
        const std::vector<char> wanted = reference::reduce(in, out, inputs, {1, 1});
        EXPECT(std::memcmp(to, wanted.data(), wanted.size()) == 0, describe(spec), ": ", count);
#if defined(__SANITIZE_ADDRESS__)
        for (int j = 0; j < n; ++j) __asan_unpoison_memory_region(memory[j].get(), 16);
#endif
      }
    }
  }
#endif
}

/// Tables around the capacities of the kernels' parameters.
CASE(tables) {
  std::mt19937_64 random(seed);
  for (const auto& [n, destinations] : {std::pair{1, 1}, {2, 1}, {4, 2}, {8, 8}, {16, 16}}) {
    const int most = max_reduce_segments(n, destinations);
    std::vector<int> counts = {0, 1, most - 1, most, most + 1};
    const int words = record_words<SegmentHead>(n, destinations);
    for (const int table : {kSmallTable, kMediumTable}) {
      counts.push_back(table / words);
      counts.push_back(table / words + 1);
    }
    counts.push_back(static_cast<int>(random() % (n <= 2 ? 3001 : 300)));
    std::vector<std::pair<DType, int>> lists;
    for (const int count : counts) lists.emplace_back(DType::kFloat32, count);
    // A conversion has one table, the middle one.
    const int middle = kMediumTable / words;
    for (const int count : {1, middle, middle + 1, 2 * middle + 1}) {
      lists.emplace_back(DType::kBFloat16, count);
    }
    for (const auto& [out, count] : lists) {
      ReduceSpec spec = random_spec(DType::kFloat32, out, n, random);
      spec.num_destinations = destinations;
      std::vector<Tensor> tensors;
      for (int i = 0; i < count; ++i) {
        const uint64_t elements = random() % 5 == 0 ? 0 : random() % (1 + random() % 60);
        tensors.push_back({elements, static_cast<Buffers>(random() % 3), random() % 2 == 0});
      }
      if (count > 1) tensors[random() % tensors.size()].count = kChunk;
      reduce_tensors(tensors, spec, random);
    }
  }
}

template <class T>
std::vector<char> as_bytes(const std::vector<T>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Every fp16 to fp32; every midpoint of two fp16 or bf16 and its neighbours back. No NaN: their
/// payloads are not promised.
CASE(conversions) {
  std::mt19937_64 random(seed);
  const auto cast = [&](DType in, DType out, const std::vector<char>& values) {
    reduce_tensors({{values.size() / dtype_size(in), Buffers::kAligned, false}},
                   ReduceSpec{in, out, 1, 1}, random, &values);
  };
  std::vector<uint16_t> halves;
  std::vector<uint32_t> near_half, near_bfloat;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const bool half = (bits & 0x7fffu) <= 0x7c00u;
    if (half) halves.push_back(static_cast<uint16_t>(bits));
    const uint32_t single = float_bits(half_to_float(static_cast<uint16_t>(bits)));
    for (const int step : {-1, 0, 1}) {
      // An fp16 step is 2^13 in the bits of an fp32 (2^23 steps for subnormals start exact).
      if ((bits & 0x7fffu) < 0x7c00u) near_half.push_back(single + 0x1000u + step);
      if ((bits & 0x7fffu) < 0x7f7fu) near_bfloat.push_back((bits << 16) + 0x8000u + step);
    }
  }
  for (uint32_t k = 0; k < 2048; ++k) {  // halves of the least fp16, and their neighbours
    const uint32_t single = float_bits(std::ldexp(static_cast<float>(k) + 0.5f, -24));
    for (const int step : {-1, 0, 1}) near_half.push_back(single + step);
  }
  cast(DType::kBFloat16, DType::kFloat32, as_bytes(halves));
  cast(DType::kFloat32, DType::kBFloat16, as_bytes(near_bfloat));
#if !defined(FC_FEW_KERNELS)
  cast(DType::kFloat16, DType::kFloat32, as_bytes(halves));
  cast(DType::kFloat16, DType::kFloat16, as_bytes(halves));
  cast(DType::kFloat32, DType::kFloat16, as_bytes(near_half));
#endif
}

CASE(race) {
  std::mt19937_64 random(seed);
  for (const int n : {1, 2, 3, 11}) {
    for (const DType out : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<Tensor> tensors = {{3 * kChunk, Buffers::kAligned, true},
                                     {900, Buffers::kAlike, true},
                                     {kChunk, Buffers::kAnyhow, true},
                                     {900, Buffers::kAnyhow, true}};
      for (int i = 0; i < 30; ++i) {
        tensors.push_back({random() % 60, static_cast<Buffers>(random() % 3), random() % 2 == 0});
      }
      reduce_tensors(tensors, random_spec(DType::kFloat32, out, n, random), random);
    }
  }
}

CASE(refused) {
  alignas(16) static char memory[64];
  const auto code_of = [&](const ReduceSpec& spec, int count = 1, size_t offset = 0) {
    const void* source = memory + offset;
    void* destination = memory;
    const std::vector<const void*> sources(20, source);
    const std::vector<void*> destinations(20, destination);
    const ReduceSegment segment{sources.data(), destinations.data(), 0};
    ReduceSegment filled = segment;
    if (offset != 0) filled.count = 4;
    ErrorCode code = ErrorCode::kSystem;
    error_of([&] { launch_multi_reduce(&filled, count, spec, nullptr); }, &code);
    return code;
  };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  constexpr DType kF32 = DType::kFloat32;
  EXPECT(code_of({kF32, kF32, 2, 1}) == ErrorCode::kSystem, "nothing wrong, nothing to do");
  EXPECT(code_of({kF32, kF32, 2, 1}, -1) == kInvalid, "a negative count");
  EXPECT(code_of({kF32, kF32, 0, 1}) == kInvalid, "no sources");
  EXPECT(code_of({kF32, kF32, 17, 1}) == kInvalid, "too many sources");
  EXPECT(code_of({kF32, kF32, 1, 0}) == kInvalid, "no destinations");
  EXPECT(code_of({kF32, kF32, 1, 17}) == kInvalid, "too many destinations");
  EXPECT(code_of({kF32, kF32, 2, 1, 0}) == kInvalid, "divisor 0");
  EXPECT(code_of({kF32, kF32, 2, 1}, 1, 2) == kInvalid, "misaligned");
  EXPECT(code_of({DType::kOther, DType::kOther, 2, 1}) == ErrorCode::kUnsupported, "bytes");
  EXPECT(code_of({kF32, DType::kInt32, 2, 1}) == ErrorCode::kUnsupported, "float to integer");
  EXPECT(code_of({kF32, DType::kFloat64, 2, 1}) == ErrorCode::kUnsupported, "float to double");
#if !defined(FC_FEW_KERNELS)
  EXPECT(code_of({DType::kInt8, DType::kInt8, 2, 1, 128}) == kInvalid, "divisor beyond int8");
  EXPECT(code_of({DType::kInt8, DType::kInt8, 2, 1, 2, 0.5}) == kInvalid, "integers scaled");
  EXPECT(code_of({DType::kInt32, DType::kInt64, 2, 1}) == ErrorCode::kUnsupported,
         "mixed integers");
#endif
}

CASE(large) {
  if (!kOnDevice) return;
  std::mt19937_64 random(seed);
  for (const int n : {2, 5, 16}) {
    const uint64_t count = 3'000'001;
    reduce_tensors({{count, Buffers::kAligned, true}, {count, Buffers::kAlike, false}},
                   random_spec(DType::kBFloat16, DType::kBFloat16, n, random), random);
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
