// The reduction of gradients with norms to the bit, against the plain references of
// reference_tree.h and reference_norm.h, guards included; on the host under the execution shim,
// where the CPU's loops must give the same, or on a GPU when compiled by nvcc.
//
//   shim_multi_gradient_test [CASE [SEED]]   CASE: sums | norms | joins | long | special |
//                                            tables | race | race_alone | refused | large
//
// race and race_alone are the short programs that ThreadSanitizer watches. large needs a GPU, and
// does nothing without one.
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "device_memory.h"
#include "kernels/cuda/multi_gradient.h"
#include "random_values.h"
#include "reference_norm.h"
#if defined(FC_SHIM)
#include "coll/fused_local.h"
#endif

namespace fastcomm::testing {
namespace {

struct Types {
  DType dtype, wire;
};

constexpr Types kTypes[] = {
    {DType::kFloat32, DType::kFloat32},  {DType::kBFloat16, DType::kBFloat16},
    {DType::kFloat32, DType::kBFloat16},
#if !defined(FC_FEW_KERNELS)
    {DType::kFloat16, DType::kFloat16},  {DType::kFloat64, DType::kFloat64},
    {DType::kFloat32, DType::kFloat16},
#endif
};
constexpr NormKind kNorms[] = {NormKind::kNone, NormKind::kOne, NormKind::kTwo,
                               NormKind::kInfinity};
constexpr uint64_t kCounts[] = {0, 1, 31, 32, 33, 1000, 4095, 4096, 4097, 8191, 12300};

using Bytes = std::vector<char>;

struct Tensor {
  Types types;
  uint64_t count;
  bool alike = true;      // all memory is aligned alike to packs
  bool in_place = false;  // the destination is a source
  std::vector<Bytes> inputs = {};
  Bytes wanted = {};
};

Bytes converted(const Bytes& values, DType from, DType to) {
  return from == to ? values : reference::reduce(from, to, {values}, reference::Epilogue{1, 1});
}

bool same(double a, double b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
}

/// Makes elements that are NaN on both sides the same: their bits are not promised.
void forgive_nans(DType dtype, const Bytes& got, char* wanted) {
  const size_t size = dtype_size(dtype);
  const std::vector<double> ours = reference::widened(dtype, got);
  const std::vector<double> theirs = reference::widened(dtype, Bytes(wanted, wanted + got.size()));
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::isnan(ours[i]) && std::isnan(theirs[i])) {
      std::memcpy(wanted + i * size, &got[i * size], size);
    }
  }
}

std::string describe(const std::vector<Tensor>& tensors, const GradientReduceSpec& spec) {
  std::string text = concat(spec.num_sources, " to ", spec.num_destinations, ", / ", spec.divisor,
                            " * ", spec.scale, ", norm ", static_cast<int>(spec.norm), ":");
  for (size_t i = 0; i < tensors.size() && i < 8; ++i) {
    text += concat(" ", tensors[i].count, " ", dtype_name(tensors[i].types.dtype), " by ",
                   dtype_name(tensors[i].types.wire));
  }
  return text;
}

struct Norms {
  std::vector<double> parts;
  double total;
  bool finite;
};

void expect_norms(const char* whose, const Norms& got, const Norms& wanted,
                  const std::string& what) {
  for (size_t i = 0; i < wanted.parts.size(); ++i) {
    EXPECT(same(got.parts[i], wanted.parts[i]), whose, ": ", what, ": part ", i, " is ",
           got.parts[i], ", not ", wanted.parts[i]);
  }
  EXPECT(same(got.total, wanted.total), whose, ": ", what, ": norm ", got.total, ", not ",
         wanted.total);
  EXPECT(got.finite == wanted.finite, whose, ": ", what, ": finite is ", got.finite);
}

#if defined(FC_SHIM)
/// The CPU's own loops, over copies.
void check_cpu(const std::vector<Tensor>& tensors, const GradientReduceSpec& spec,
               const Norms& wanted) {
  std::vector<Bytes> memory;
  std::vector<Gradient> gradients;
  std::vector<std::vector<const char*>> from(spec.num_sources);
  for (const Tensor& tensor : tensors) {
    memory.push_back(tensor.inputs[0]);
    for (int k = 0; k < spec.num_sources; ++k) from[k].push_back(tensor.inputs[k].data());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    gradients.push_back({memory[i].data(), tensor.count, tensor.types.dtype, tensor.types.wire});
  }
  GradientList list(gradients, {spec.divisor > 1, spec.scale, spec.norm});
  if (spec.num_destinations == 0) {
    note_norms(list, 0, list.units());
  } else {
    reduce_units(list, from, 0, list.units());
  }
  const std::vector<double> parts = list.parts();
  const double total = norm_of_parts(parts.data(), parts.size(), spec.norm);
  const std::string what = describe(tensors, spec);
  expect_norms("CPU", {parts, total, list.finite()}, wanted, what);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Bytes expected = tensors[i].wanted;
    forgive_nans(tensors[i].types.dtype, memory[i], expected.data());
    EXPECT(memory[i] == expected, "CPU: ", what, ": tensor ", i);
  }
}
#endif

/// Reduces all tensors by one call and compares every byte of the memory they lie in, and the
/// norms. Fills in missing inputs.
void check(std::vector<Tensor> tensors, const GradientReduceSpec& spec, std::mt19937_64& random) {
  const reference::Epilogue last{spec.divisor, spec.scale};
  Arena arena;
  std::vector<std::vector<size_t>> sources;
  std::vector<size_t> destinations;
  Norms wanted{{}, 0, true};
  for (Tensor& tensor : tensors) {
    const DType dtype = tensor.types.dtype, wire = tensor.types.wire;
    const size_t size = dtype_size(dtype), bytes = tensor.count * size;
    std::vector<Bytes> terms;
    sources.emplace_back();
    const size_t alike = random() % 16 / size * size;
    const auto place = [&] {
      return arena.add(bytes, tensor.alike ? alike : random() % 16 / size * size);
    };
    for (int j = 0; j < spec.num_sources; ++j) {
      if (static_cast<int>(tensor.inputs.size()) == j) {
        tensor.inputs.push_back(random_values(dtype, tensor.count, random));
      }
      terms.push_back(converted(tensor.inputs[j], dtype, wire));
      sources.back().push_back(place());
    }
    destinations.push_back(tensor.in_place ? sources.back()[random() % sources.back().size()]
                                           : place());
    tensor.wanted = spec.num_destinations == 0
                        ? tensor.inputs[0]
                        : converted(reference::reduce(wire, wire, terms, last), wire, dtype);
    const std::vector<double> values = reference::widened(dtype, tensor.wanted);
    wanted.parts.push_back(reference::part_of(values, spec.norm));
    wanted.finite = wanted.finite && reference::all_finite(values);
  }
  wanted.total = reference::norm_of(wanted.parts, spec.norm);

  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t j = 0; j < sources[i].size(); ++j) {
      const Bytes& input = tensors[i].inputs[j];
      std::copy(input.begin(), input.end(), arena.host(sources[i][j]));
    }
  }
  arena.upload();
  std::vector<std::vector<const void*>> from(tensors.size());
  std::vector<void*> to(tensors.size());
  std::vector<GradientSegment> segments;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const size_t at : sources[i]) from[i].push_back(arena.device(at));
    to[i] = arena.device(destinations[i]);
    segments.push_back({{from[i].data(), &to[i], tensors[i].count},
                        tensors[i].types.dtype,
                        tensors[i].types.wire});
  }
  const int count = static_cast<int>(segments.size());
  const bool wide = random() % 2 == 0;
  DeviceMemory scratch(gradient_scratch_bytes(segments.data(), count));
  DeviceMemory results((tensors.size() + 2) * sizeof(double));
  auto* const parts = reinterpret_cast<double*>(results.get()) + 2;
  auto* const found = reinterpret_cast<float*>(results.get() + sizeof(double));
  const NormResults into{parts, results.get(), wide ? DType::kFloat64 : DType::kFloat32, found};
  launch_multi_gradient(segments.data(), count, spec, scratch.get(), into, nullptr);

  const std::string what = describe(tensors, spec);
  synchronize();
  const Bytes found_out = results.download();
  Norms got{std::vector<double>(tensors.size()), 0, true};
  float narrow = 0, found_inf = 0;
  std::memcpy(&got.total, found_out.data(), sizeof(double));
  std::memcpy(&narrow, found_out.data(), sizeof(float));
  std::memcpy(&found_inf, &found_out[sizeof(double)], sizeof(float));
  if (!tensors.empty()) {
    std::memcpy(got.parts.data(), &found_out[2 * sizeof(double)], tensors.size() * sizeof(double));
  }
  EXPECT(found_inf == 0 || found_inf == 1, what, ": found_inf ", found_inf);
  got.finite = found_inf == 0;
  if (!wide) {
    EXPECT(same(narrow, static_cast<float>(wanted.total)), what, ": norm ", narrow);
    got.total = wanted.total;
  }
  expect_norms("CUDA", got, wanted, what);
  for (size_t i = 0; spec.num_destinations != 0 && i < tensors.size(); ++i) {
    Bytes& want = tensors[i].wanted;
    Bytes result(want.size());
    copy_memory(result.data(), arena.device(destinations[i]), result.size());
    std::copy(want.begin(), want.end(), arena.host(destinations[i]));
    forgive_nans(tensors[i].types.dtype, result, arena.host(destinations[i]));
  }
  const long wrong = arena.first_difference();
  EXPECT(wrong < 0, what, ": byte ", wrong);
  if (wide) {
    launch_norm_of_parts(parts, count, spec.norm, reinterpret_cast<double*>(results.get()),
                         nullptr);
    synchronize();
    double again = 0;
    std::memcpy(&again, results.download().data(), sizeof(again));
    EXPECT(same(again, wanted.total), what, ": of the parts ", again);
  }
#if defined(FC_SHIM)
  check_cpu(tensors, spec, wanted);
#endif
}

GradientReduceSpec random_spec(int num_sources, std::mt19937_64& random) {
  GradientReduceSpec spec{num_sources};
  spec.divisor = random() % 2 == 0 ? num_sources : 1;
  spec.scale = random() % 2 == 0 ? 1 : (1 + static_cast<double>(random() % 1000) / 1000) / 16;
  spec.norm = kNorms[random() % 4];
  return spec;
}

Tensor random_tensor(std::mt19937_64& random, uint64_t count) {
  const Types types = kTypes[random() % std::size(kTypes)];
  return {types, count, random() % 4 != 0, random() % 4 == 0};
}

/// Any number of sources, every pair of types, sizes around packs, lanes and blocks.
CASE(sums) {
  std::mt19937_64 random(seed);
  for (int n = 1; n <= kMaxReduceSources; ++n) {
    for (const Types types : kTypes) {
      std::vector<Tensor> tensors;
      for (int k = 0; k < 3; ++k) {
        tensors.push_back(random_tensor(random, kCounts[random() % std::size(kCounts)]));
        tensors.back().types = types;
      }
      check(tensors, random_spec(n, random), random);
    }
  }
  for (int round = 0; round < 10; ++round) {  // lists of many types, sizes next to the limits
    std::vector<Tensor> tensors;
    for (int k = static_cast<int>(random() % 9); k > 0; --k) {
      const uint64_t around = kCounts[random() % std::size(kCounts)];
      tensors.push_back(random_tensor(random, around + random() % 9));
    }
    check(tensors, random_spec(1 + static_cast<int>(random() % 8), random), random);
  }
}

/// Nothing is written.
CASE(norms) {
  std::mt19937_64 random(seed);
  for (const Types types : kTypes) {
    if (types.dtype != types.wire) continue;
    for (const NormKind kind : kNorms) {
      GradientReduceSpec spec{1, 0};
      spec.norm = kind;
      std::vector<Tensor> tensors;
      for (const uint64_t count : kCounts) tensors.push_back({types, count, random() % 2 == 0});
      check(tensors, spec, random);
    }
  }
}

/// Trees of any number of parts: around what a thread, a thread block and a tile join.
CASE(joins) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> magnitudes(0, 1);
  for (const int count : {0,    1,    2,    3,    7,    8,    9,    100,  127,  128,   129,
                          2047, 2048, 2049, 2055, 2056, 4095, 4096, 4097, 6145, 20000, 65537}) {
    std::vector<double> parts;
    for (int i = 0; i < count; ++i) {  // of many magnitudes, so that a different order shows
      parts.push_back(std::ldexp(magnitudes(random), static_cast<int>(random() % 40)));
    }
    for (const NormKind kind : kNorms) {
      const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
      if (count != 0 && kind == NormKind::kInfinity && random() % 2 == 0) {
        parts[random() % parts.size()] = random() % 2 == 0 ? nan : infinite;
      }
      const double wanted = reference::norm_of(parts, kind);
      DeviceMemory memory((parts.size() + 1) * sizeof(double));
      auto* const total = reinterpret_cast<double*>(memory.get());
      Bytes bytes(parts.size() * sizeof(double));
      if (count != 0) std::memcpy(bytes.data(), parts.data(), bytes.size());
      memory.upload(bytes, sizeof(double));
      launch_norm_of_parts(total + 1, count, kind, total, nullptr);
      synchronize();
      double got = 0;
      std::memcpy(&got, memory.download().data(), sizeof(got));
      EXPECT(same(got, wanted), count, " parts, norm ", static_cast<int>(kind), ": ", got, ", not ",
             wanted);
#if defined(FC_SHIM)
      const double on_cpu = norm_of_parts(parts.data(), parts.size(), kind);
      EXPECT(same(on_cpu, wanted), count, " parts on the CPU: ", on_cpu, ", not ", wanted);
#endif
    }
  }
}

/// A tensor of more blocks than a tile has.
CASE(long) {
  std::mt19937_64 random(seed);
  GradientReduceSpec spec{1, 0};
  check({{kTypes[1], 5}, {kTypes[1], 4096 * 2050 + 77}, {kTypes[1], 4096 * 3}}, spec, random);
}

/// A NaN or an infinity somewhere; sums that overflow; fp64 values whose squares do, which does not
/// set found_inf.
CASE(special) {
  std::mt19937_64 random(seed);
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 80; ++round) {
    const int n = 1 + static_cast<int>(random() % 5);
    const Types types = kTypes[random() % std::size(kTypes)];
    const uint64_t count = kCounts[1 + random() % (std::size(kCounts) - 1)];
    std::vector<Tensor> tensors = {{types, 40}, {types, count}, {kTypes[0], 5000}};
    Tensor& one = tensors[1];
    for (int j = 0; j < n; ++j) one.inputs.push_back(random_values(types.dtype, count, random));
    const double values[] = {kInfinite, -kInfinite, std::nan(""), 3e38, 1e300};
    const uint64_t places[] = {0, count - 1, random() % count, std::min<uint64_t>(count - 1, 4095)};
    const double value = values[random() % std::size(values)];
    const uint64_t at = places[random() % std::size(places)];
    for (int j = 0; j < n; ++j) {
      if (random() % 2 == 0) continue;  // also no such value, and opposite infinities
      const double signed_value = random() % 4 == 0 ? -value : value;
      char* const into = &one.inputs[j][at * dtype_size(types.dtype)];
      const auto as_float = static_cast<float>(signed_value);
      const uint16_t bfloat = reference::narrow_bfloat16(as_float);
      const auto half = static_cast<_Float16>(as_float);
      if (types.dtype == DType::kFloat64) std::memcpy(into, &signed_value, sizeof(double));
      if (types.dtype == DType::kFloat32) std::memcpy(into, &as_float, sizeof(float));
      if (types.dtype == DType::kBFloat16) std::memcpy(into, &bfloat, sizeof(bfloat));
      if (types.dtype == DType::kFloat16) std::memcpy(into, &half, sizeof(half));
    }
    check(tensors, random_spec(n, random), random);
    if (n != 1 || types.dtype != types.wire) continue;
    for (const NormKind kind : kNorms) {  // nothing is written
      GradientReduceSpec alone{1, 0};
      alone.norm = kind;
      check(tensors, alone, random);
      check({one}, alone, random);  // a list of one has its results a kernel earlier
    }
  }
}

/// Tables around the capacities of the kernels' parameters: 256 and 816 records of five words.
CASE(tables) {
  std::mt19937_64 random(seed);
  for (const int count : {0, 1, 100, 255, 256, 257, 815, 816, 817, 1700}) {
    const Types types = kTypes[random() % 2];
    std::vector<Tensor> tensors;
    for (int i = 0; i < count; ++i) {
      const uint64_t elements = random() % 5 == 0 ? 0 : random() % (1 + random() % 60);
      tensors.push_back({types, elements, random() % 3 != 0, random() % 2 == 0});
    }
    if (count > 1) tensors[random() % tensors.size()].count = 4100;
    check(tensors, random_spec(1, random), random);
  }
}

CASE(race) {
  std::mt19937_64 random(seed);
  for (const int n : {1, 2, 3}) {
    std::vector<Tensor> tensors;
    for (const uint64_t count : {9000, 4096, 700, 0, 33}) {
      tensors.push_back(random_tensor(random, count));
    }
    GradientReduceSpec spec = random_spec(n, random);
    spec.norm = NormKind::kTwo;
    check(tensors, spec, random);
  }
}

/// The same, for norms alone.
CASE(race_alone) {
  std::mt19937_64 random(seed);
  for (const Types types : kTypes) {
    if (types.dtype != types.wire) continue;
    std::vector<Tensor> tensors;
    for (const uint64_t count : {20000, 4096, 700, 0, 33}) tensors.push_back({types, count});
    check(tensors, {1, 0}, random);
  }
}

CASE(refused) {
  alignas(16) static char memory[64];
  const auto code_of = [&](const GradientReduceSpec& spec, Types types, size_t offset = 0) {
    const std::vector<const void*> sources(20, memory + offset);
    void* destination = memory;
    const GradientSegment segment{{sources.data(), &destination, 4}, types.dtype, types.wire};
    const NormResults results{reinterpret_cast<double*>(memory), memory, DType::kFloat64, nullptr};
    ErrorCode code = ErrorCode::kSystem;
    error_of([&] { launch_multi_gradient(&segment, 1, spec, memory, results, nullptr); }, &code);
    return code;
  };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  constexpr Types kPlain{DType::kFloat32, DType::kFloat32};
  EXPECT(code_of({0}, kPlain) == kInvalid, "no sources");
  EXPECT(code_of({17}, kPlain) == kInvalid, "too many sources");
  EXPECT(code_of({2, 0}, kPlain) == kInvalid, "the norm of two sources");
  EXPECT(code_of({2, 1, 0}, kPlain) == kInvalid, "divisor 0");
  EXPECT(code_of({2}, kPlain, 2) == kInvalid, "misaligned");
  EXPECT(code_of({2}, {DType::kInt32, DType::kInt32}) == ErrorCode::kUnsupported, "integers");
  EXPECT(code_of({2}, {DType::kFloat64, DType::kFloat16}) == ErrorCode::kUnsupported, "wire");
}

CASE(large) {
  if (!kOnDevice) return;
  std::mt19937_64 random(seed);
  for (const int n : {2, 5, 16}) {
    for (const Types types : kTypes) {
      std::vector<Tensor> tensors = {{types, 1'000'001}, {types, 400'000, false, true}};
      check(tensors, random_spec(n, random), random);
    }
  }
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
