// The batched reduction to the bit, against the plain tree of reference_tree.h, guards included; on
// the host under the execution shim, or on a GPU when compiled by nvcc.
//
//   shim_multi_reduce_test [CASE [SEED]]     CASE: sums | negative_zeros | tables |
//                                            conversions | race | refused | large
//
// race is the short program that ThreadSanitizer watches. large needs a GPU, and does nothing
// without one.
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
#include "random_values.h"

namespace fastcomm::testing {
namespace {

/// Bytes that a block moves of a source at once, at most.
constexpr uint64_t kChunk = uint64_t{kTableThreads} * kPacksInFlight * 2 * kPackBytes;

std::string describe(const ReduceSpec& spec) {
  return concat(dtype_name(spec.in), " to ", dtype_name(spec.out), ", ", spec.num_sources, " to ",
                spec.num_destinations, ", / ", spec.divisor, " * ", spec.scale);
}

/// How a segment's buffers lie to each other.
enum class Lie { kAligned, kAlike, kAnyhow };

struct Tensor {
  uint64_t count;
  Lie lie;
  bool in_place;  // destination d is source d, as far as there are both
};

/// Reduces all tensors by one call and compares every byte of the memory they lie in.
void reduce_tensors(const std::vector<Tensor>& tensors, const ReduceSpec& spec,
                    std::mt19937_64& random, const std::vector<char>* values = nullptr) {
  const size_t in_size = dtype_size(spec.in), out_size = dtype_size(spec.out);
  Arena arena;
  std::vector<std::vector<size_t>> sources, destinations;
  for (const Tensor& tensor : tensors) {
    const auto offset = [&, alike = random() % 16](size_t size) -> size_t {
      if (tensor.lie == Lie::kAligned) return 0;
      return (tensor.lie == Lie::kAlike ? alike : random() % 16) / size * size;
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
  launch_multi_reduce(segments.data(), static_cast<int>(segments.size()), spec, nullptr);
  const long wrong = arena.first_difference();
  EXPECT(wrong < 0, describe(spec), ": ", tensors.size(), " tensors, the first of ",
         tensors.empty() ? 0 : tensors[0].count, ": byte ", wrong);
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat64 ||
         std::count(kKernelFloats.begin(), kKernelFloats.end(), dtype) != 0;
}

/// A random divisor and scale; small enough that sums meet the range of fp16.
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
void sums(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pair = [&](DType in, DType out) {
    const uint64_t size = std::min(dtype_size(in), dtype_size(out));
    for (int n = 1; n <= kMaxReduceSources; ++n) {
      std::vector<Tensor> tensors;
      for (const uint64_t around :
           {uint64_t{0}, kPackBytes / size, kChunk / 8 / size, kChunk / size, 3 * kChunk / size}) {
        for (int k = 0; k < 2; ++k) {
          const uint64_t count = around + random() % (2 + kPackBytes / size);
          const Lie lie = static_cast<Lie>(random() % 3);
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
void negative_zeros(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<char> values(33 * sizeof(float));
  for (size_t i = 0; i < values.size(); i += sizeof(float)) values[i + 3] = '\x80';
  for (int n = 1; n <= kMaxReduceSources; ++n) {
    const ReduceSpec spec{DType::kFloat32, DType::kFloat32, n, 1};
    reduce_tensors({{33, Lie::kAligned, false}}, spec, random, &values);
  }
}

/// Tables around the capacities of the kernels' parameters.
void tables(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const auto& [n, destinations] : {std::pair{1, 1}, {2, 1}, {4, 2}, {8, 8}, {16, 16}}) {
    const int most = max_reduce_segments(n, destinations);
    std::vector<int> counts = {0, 1, most / 8, most / 8 + 1, most - 1, most, most + 1};
    counts.push_back(static_cast<int>(random() % (n <= 2 ? 3001 : 300)));
    for (const int count : counts) {
      ReduceSpec spec = random_spec(DType::kFloat32, DType::kFloat32, n, random);
      spec.num_destinations = destinations;
      std::vector<Tensor> tensors;
      for (int i = 0; i < count; ++i) {
        const uint64_t elements = random() % 5 == 0 ? 0 : random() % (1 + random() % 60);
        tensors.push_back({elements, static_cast<Lie>(random() % 3), random() % 2 == 0});
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
void conversions(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto cast = [&](DType in, DType out, const std::vector<char>& values) {
    reduce_tensors({{values.size() / dtype_size(in), Lie::kAligned, false}},
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

void race(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const int n : {1, 2, 3, 11}) {
    for (const DType out : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<Tensor> tensors = {{3 * kChunk, Lie::kAligned, true}, {900, Lie::kAlike, true}};
      for (int i = 0; i < 30; ++i) {
        tensors.push_back({random() % 60, static_cast<Lie>(random() % 3), random() % 2 == 0});
      }
      reduce_tensors(tensors, random_spec(DType::kFloat32, out, n, random), random);
    }
  }
}

void refused(uint64_t) {
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

void large(uint64_t seed) {
  if (!kOnDevice) return;
  std::mt19937_64 random(seed);
  for (const int n : {2, 5, 16}) {
    const uint64_t count = 3'000'001;
    reduce_tensors({{count, Lie::kAligned, true}, {count, Lie::kAlike, false}},
                   random_spec(DType::kBFloat16, DType::kBFloat16, n, random), random);
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"sums", sums},
                    {"negative_zeros", negative_zeros},
                    {"tables", tables},
                    {"conversions", conversions},
                    {"race", race},
                    {"refused", refused},
                    {"large", large}});
}
