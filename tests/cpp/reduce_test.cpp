// The CPU's reduction loops to the bit against the plain reference, and the conversions of
// numeric.h against independent ones over every value that matters.
//
//   reduce_test CASE SEED        FASTCOMM_ISA chooses the instruction set
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cfenv>
#include <limits>
#include <thread>

#include "check.h"
#include "dtypes.h"
#include "kernels/isa.h"
#include "kernels/reduce_cpu.h"
#include "reference_tree.h"

namespace fastcomm::testing {
namespace {

/// Flushes subnormals to zero, as torch.set_flush_denormal(True) does; false where it cannot.
bool flush_subnormals(bool on) {
#if defined(__x86_64__)
  constexpr unsigned kFlush = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned now = _mm_getcsr() & ~(kFlush | kDenormalsAreZero);
  _mm_setcsr(on ? now | kFlush | kDenormalsAreZero : now);
  return true;
#else
  return !on;
#endif
}

/// One reduction of `sources` inputs: plain, in place of one input, and into two destinations.
void compare(DType dtype, int sources, size_t count, bool average, size_t shift, uint64_t seed) {
  const size_t element = dtype_size(dtype);
  const size_t bytes = count * element;
  const int divisor = average ? sources : 1;
  std::vector<std::vector<char>> inputs;
  for (int j = 0; j < sources; ++j) inputs.push_back(random_input(dtype, count, seed + j));
  const std::vector<char> wanted = reference::reduce(dtype, inputs, divisor);

  // Each source at a different distance from an aligned address.
  std::vector<std::vector<char>> memory;
  std::vector<const void*> pointers;
  for (int j = 0; j < sources; ++j) {
    const size_t at = (shift + j) % 9 * element;
    memory.emplace_back(at + bytes + 64, '\x5a');
    std::copy(inputs[j].begin(), inputs[j].end(), memory.back().begin() + at);
    pointers.push_back(memory.back().data() + at);
  }
  const auto check = [&](const void* got, const char* how) {
    const bool same = bytes == 0 || std::memcmp(got, wanted.data(), bytes) == 0;
    EXPECT(same, how, ": ", dtype_name(dtype), ", ", sources, " sources, ", count, " elements",
           average ? ", average" : "");
    const char* behind = static_cast<const char*>(got) + bytes;
    EXPECT(*behind == '\x5a', how, ": wrote past the end");
  };
  const ReduceFunction function = reduce_function(dtype, average ? ReduceOp::kAvg : ReduceOp::kSum);
  std::vector<char> first(bytes + 128, '\x5a'), second(bytes + 128, '\x5a');
  char* dst = first.data() + shift % 5 * element;
  char* second_dst = second.data() + (shift + 3) % 5 * element;
  function({dst, nullptr, pointers.data(), sources, count, divisor});
  check(dst, "plain");
  function({dst, second_dst, pointers.data(), sources, count, divisor});
  check(dst, "first of two");
  check(second_dst, "second of two");
  const int own = static_cast<int>(seed % sources);
  char* in_place = const_cast<char*>(static_cast<const char*>(pointers[own]));
  function({in_place, second_dst, pointers.data(), sources, count, divisor});
  check(in_place, "in place");
  check(second_dst, "second beside in place");
}

void test_bits(uint64_t seed) {
  std::printf("isa %s\n", isa_name());
  for (const DType dtype : kDTypes) {
    for (int sources = 1; sources <= 20; ++sources) {
      for (const size_t count : {0, 1, 7, 64, 65, 511, 1025}) {
        for (const bool average : {false, true}) {
          if (average && dtype == DType::kBool) continue;
          compare(dtype, sources, count, average, seed + sources + count, seed * 100 + sources);
        }
      }
    }
    compare(dtype, 64, 700, false, 1, seed);
  }
  ErrorCode code{};
  error_of([] { reduce_function(DType::kOther, ReduceOp::kSum); }, &code);
  EXPECT(code == ErrorCode::kUnsupported);
}

/// Subnormal fp16 sums are the same whatever mode the calling thread is in.
void test_flushed_bits(uint64_t seed) {
  if (!flush_subnormals(true)) return;
  flush_subnormals(false);
  std::mt19937_64 bits(seed);
  for (int sources = 1; sources <= 20; ++sources) {
    const size_t count = 999;
    std::vector<std::vector<char>> inputs;
    for (int j = 0; j < sources; ++j) {
      inputs.emplace_back(count * 2);
      for (size_t i = 0; i < count; ++i) {  // subnormal and small, of both signs
        const auto half = static_cast<uint16_t>((bits() % 0x0c00) | (bits() % 2 << 15));
        std::memcpy(inputs[j].data() + 2 * i, &half, 2);
      }
    }
    const auto wanted = reference::reduce(DType::kFloat16, inputs, 1);
    std::vector<const void*> pointers;
    for (const auto& input : inputs) pointers.push_back(input.data());
    std::vector<char> got(count * 2);
    for (const bool flushed : {false, true}) {
      flush_subnormals(flushed);
      const ReduceFunction sum = reduce_function(DType::kFloat16, ReduceOp::kSum);
      sum({got.data(), nullptr, pointers.data(), sources, count, 1});
      flush_subnormals(false);
      EXPECT(got == wanted, sources, " sources, flushed ", flushed);
    }
  }
}

/// The value of a half by the definition of the format, in double.
double half_by_definition(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == 31) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

double bfloat16_by_definition(uint16_t bits) { return reference::widen_bfloat16(bits); }

/// Nearest, ties to even, by search between neighbours: `below` is the largest finite or infinite
/// bit pattern whose magnitude does not exceed the value's.
template <class Widen>
uint16_t narrow_by_search(double value, uint16_t infinity, const Widen& widen) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::abs(value);
  uint16_t low = 0, high = infinity;  // bit patterns of magnitudes are in order
  while (low + 1 < high) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (widen(middle) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(magnitude)) return sign | infinity;
  // Infinity takes the place of the next finite value.
  const double gap =
      widen(static_cast<uint16_t>(infinity - 1)) - widen(static_cast<uint16_t>(infinity - 2));
  const double above =
      high == infinity ? widen(static_cast<uint16_t>(infinity - 1)) + gap : widen(high);
  const double to_low = magnitude - widen(low), to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
  return sign | (up ? high : low);
}

/// Floats around `value`: itself, its neighbours, and further ones.
template <class Use>
void around(float value, const Use& use) {
  const uint32_t bits = float_bits(value);
  for (const int64_t step : {-4096, -2, -1, 0, 1, 2, 4096}) {
    const int64_t moved = static_cast<int64_t>(bits) + step;
    if (moved >= 0 && moved <= 0xffffffffll) use(bits_float(static_cast<uint32_t>(moved)));
  }
}

template <class Widen, class Narrow>
void check_narrow(const char* name, uint16_t infinity, const Widen& widen, const Narrow& narrow,
                  float value) {
  if (std::isnan(value)) return;
  const uint16_t wanted = narrow_by_search(value, infinity, widen);
  const uint16_t got = narrow(value);
  EXPECT(got == wanted, name, " of ", float_bits(value), ": ", got, " instead of ", wanted);
}

/// Both directions, over all values of the format, midpoints and the values around them.
template <class Widen, class Load, class Narrow>
void check_format(const char* name, uint16_t infinity, const Widen& widen, const Load& load,
                  const Narrow& narrow, bool flushed) {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const auto magnitude = static_cast<uint16_t>(bits & 0x7fff);
    flush_subnormals(flushed);
    const float wide = load(bits);
    const uint16_t back = narrow(wide);
    flush_subnormals(false);
    if (magnitude > infinity) {
      EXPECT(std::isnan(wide), name, " ", i);
      EXPECT((back & 0x7fff) > infinity, name, " ", i);
      continue;
    }
    const double exact = widen(bits);
    EXPECT(double(wide) == exact && std::signbit(wide) == std::signbit(exact), name, " ", i);
    EXPECT(back == bits, name, " there and back: ", i, " became ", back);
  }
  if (flushed) return;  // input from a float subnormal may be flushed
  for (int i = 0; i < infinity; ++i) {
    const double low = widen(static_cast<uint16_t>(i));
    const double high = i + 1 == infinity ? 2 * low - widen(static_cast<uint16_t>(i - 1))
                                          : widen(static_cast<uint16_t>(i + 1));
    for (const double sign : {1.0, -1.0}) {
      const auto use = [&](float value) { check_narrow(name, infinity, widen, narrow, value); };
      around(static_cast<float>(sign * low), use);
      around(static_cast<float>(sign * (low + high) / 2), use);
    }
  }
  for (const float value :
       {0.f, -0.f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::denorm_min()}) {
    check_narrow(name, infinity, widen, narrow, value);
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const uint16_t got = narrow(bits_float(nan));
    EXPECT((got & 0x7fff) > infinity, name, " of NaN ", nan, ": ", got);
  }
}

void test_conversions(uint64_t) {
  for (const bool flushed : {false, true}) {
    check_format("half", 0x7c00, half_by_definition, half_to_float, float_to_half, flushed);
    // A bfloat16 subnormal is a float subnormal, but its conversions are moves of bits.
    check_format("bfloat16", 0x7f80, bfloat16_by_definition, bfloat16_to_float, float_to_bfloat16,
                 flushed);
  }
}

constexpr size_t kPiece = 4096;

#if defined(__x86_64__)
/// What the processor makes of floats.
__attribute__((target("avx,f16c"))) void halves_of_processor(const float* from, uint16_t* to) {
  for (size_t i = 0; i < kPiece; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
}
#endif

/// Halves made independently: by the processor, or else by the compiler's library, which takes
/// minutes for all floats.
void foreign_halves(const float* from, uint16_t* to) {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  if (has) return halves_of_processor(from, to);
#endif
  for (size_t i = 0; i < kPiece; ++i) {
    const auto half = static_cast<_Float16>(from[i]);
    std::memcpy(to + i, &half, sizeof(half));
  }
}

/// Every float, to half. Pieces are dealt to as many threads as there are cores.
void test_every_float(uint64_t) {
  constexpr uint64_t kPieces = (uint64_t{1} << 32) / kPiece;
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads(std::max(1u, std::thread::hardware_concurrency()));
  const auto work = [&next] {
    std::vector<float> values(kPiece);
    std::vector<uint16_t> got(kPiece), wanted(kPiece);
    for (uint64_t piece; (piece = next++) < kPieces;) {
      for (size_t i = 0; i < kPiece; ++i) {
        values[i] = bits_float(static_cast<uint32_t>(piece * kPiece + i));
      }
      for (size_t i = 0; i < kPiece; ++i) got[i] = float_to_half(values[i]);
      foreign_halves(values.data(), wanted.data());
      if (got == wanted) continue;
      for (size_t i = 0; i < kPiece; ++i) {
        const bool nan = std::isnan(values[i]) && (got[i] & 0x7fff) > 0x7c00;
        EXPECT(got[i] == wanted[i] || nan, "float ", float_bits(values[i]), ": ", got[i]);
      }
    }
  };
  for (std::thread& thread : threads) thread = std::thread(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT(next >= kPieces);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"bits", test_bits},
                    {"flushed_bits", test_flushed_bits},
                    {"conversions", test_conversions},
                    {"every_float", test_every_float}});
}
