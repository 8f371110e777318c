// The conversions of core/numeric.h against independent ones, over every value that matters; and
// loops that convert, against those.
//
//   conversions_test CASE SEED        FASTCOMM_ISA chooses the instruction set
#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "check.h"
#include "flush_subnormals.h"
#include "kernels/gradient_cpu.h"
#include "kernels/isa.h"
#include "reference_tree.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kPiece = 4096;
constexpr uint64_t kPieces = (uint64_t{1} << 32) / kPiece;

/// As the compiler converts.
double widen_half(uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof(value));
  return static_cast<double>(value);
}
uint16_t narrow_half(float value) {
  const auto half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
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

/// A format of 16 bits: its conversions, and independent ones.
struct Format {
  const char* name;
  uint16_t infinity;
  double (*widen)(uint16_t bits);
  uint16_t (*nearest)(float value);
  float (*load)(uint16_t bits);
  uint16_t (*narrow)(float value);
};

void check_narrow(const Format& form, float value) {
  if (std::isnan(value)) return;
  const uint16_t wanted = form.nearest(value), got = form.narrow(value);
  EXPECT(got == wanted, form.name, " of ", float_bits(value), ": ", got, " instead of ", wanted);
}

/// Both directions, over all values of the format, midpoints and the values around them.
void check_format(const Format& form, bool flushed) {
  const auto& [name, infinity, widen, nearest, load, narrow] = form;
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
      const auto use = [&](float value) { check_narrow(form, value); };
      around(static_cast<float>(sign * low), use);
      around(static_cast<float>(sign * (low + high) / 2), use);
    }
  }
  for (const float value :
       {0.f, -0.f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::denorm_min()}) {
    check_narrow(form, value);
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const uint16_t got = narrow(bits_float(nan));
    EXPECT((got & 0x7fff) > infinity, name, " of NaN ", nan, ": ", got);
  }
}

CASE(conversions) {
  for (const bool flushed : {false, true}) {
    check_format({"half", 0x7c00, widen_half, narrow_half, half_to_float, float_to_half}, flushed);
    // A bfloat16 subnormal is a float subnormal, but its conversions are moves of bits.
    check_format(
        {"bfloat16", 0x7f80, [](uint16_t b) { return double{reference::widen_bfloat16(b)}; },
         reference::narrow_bfloat16, bfloat16_to_float, float_to_bfloat16},
        flushed);
  }
}

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
  std::transform(from, from + kPiece, to, narrow_half);
}

/// Every float, to half. Pieces are dealt to as many threads as there are cores.
CASE(every_float) {
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

template <class T>
T of_bits(uint32_t bits) {
  T value;
  const auto narrow = static_cast<uint16_t>(bits);
  if constexpr (sizeof(T) == 4) {
    std::memcpy(&value, &bits, sizeof(value));
  } else {
    std::memcpy(&value, &narrow, sizeof(value));
  }
  return value;
}

template <class T>
uint32_t bits_of(T value) {
  if constexpr (sizeof(T) == 4) {
    return float_bits(value);
  } else {
    return value.bits;
  }
}

/// Conversion to the same type changes nothing.
template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same<To, From>::value) {
    return value;
  } else {
    return Numeric<To>::store(Numeric<From>::load(value));
  }
}

/// A loop of `count` values from `bits` on, at addresses aligned to elements only.
template <class To, class From>
void compare(ConvertFunction convert, uint32_t bits, size_t count) {
  std::vector<From> from(count + 1);
  std::vector<To> to(count + 2);
  for (size_t i = 0; i < count; ++i) from[i + 1] = of_bits<From>(bits + static_cast<uint32_t>(i));
  const To guard = of_bits<To>(0x1234);
  to[count + 1] = guard;
  convert(to.data() + 1, from.data() + 1, count);
  for (size_t i = 0; i < count; ++i) {
    const To wanted = converted<To>(from[i + 1]);
    if (bits_of(to[i + 1]) == bits_of(wanted)) continue;  // makes no text for it
    EXPECT(bits_of(to[i + 1]) == bits_of(wanted), "from ", bits_of(from[i + 1]), ": ",
           bits_of(to[i + 1]), ", not ", bits_of(wanted));
  }
  EXPECT(bits_of(to[count + 1]) == bits_of(guard), "written behind the end");
}

template <class To, class From>
void compare_all(DType to, DType from, uint64_t every) {
  const ConvertFunction convert = convert_function(to, from);
  for (size_t count = 0; count < 70; ++count) compare<To, From>(convert, 0x7bf0, count);
  const uint64_t pieces = sizeof(From) == 2 ? 65536 / kPiece : kPieces;
  for (uint64_t piece = 0; piece < pieces; piece += sizeof(From) == 2 ? 1 : every) {
    compare<To, From>(convert, static_cast<uint32_t>(piece * kPiece), kPiece);
  }
}

template <class From>
void compare_from(DType from, uint64_t every) {
  compare_all<float, From>(DType::kFloat32, from, every);
  compare_all<Half, From>(DType::kFloat16, from, every);
  compare_all<BFloat16, From>(DType::kBFloat16, from, every);
}

/// Every half and bfloat16, and one in `every` pieces of all floats, covering all exponents.
void compare_each(uint64_t every) {
  std::printf("isa %s\n", isa_name());
  for (const bool flushed : {false, true}) {
    flush_subnormals(flushed);
    compare_from<Half>(DType::kFloat16, every);
    compare_from<BFloat16>(DType::kBFloat16, every);
    compare_from<float>(DType::kFloat32, every);
    flush_subnormals(false);
  }
}

template <class To>
void compare_feedback(DType to, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t count = 0; count < 70; ++count) {
    std::vector<float> from(count), residual(count), before;
    std::vector<To> rounded(count);
    for (float& value : from) value = bits_float(static_cast<uint32_t>(random()));
    for (float& value : residual) value = bits_float(static_cast<uint32_t>(random()));
    // Near each other, so that not all is lost.
    for (size_t i = 0; i < count; i += 2) residual[i] = from[i] * 0x1p-13f;
    before = residual;
    feedback_function(to)(rounded.data(), from.data(), residual.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const float value = from[i] + before[i];
      const To wanted = Numeric<To>::store(value);
      const float left = value - Numeric<To>::load(wanted);
      EXPECT(rounded[i].bits == wanted.bits, from[i], " and ", before[i]);
      EXPECT(float_bits(residual[i]) == float_bits(std::isfinite(left) ? left : 0.0f), from[i],
             " and ", before[i]);
    }
  }
}

CASE(few) { compare_each(4093); }
CASE(some) { compare_each(61); }
CASE(all) { compare_each(1); }
CASE(feedback) {
  compare_feedback<Half>(DType::kFloat16, seed);
  compare_feedback<BFloat16>(DType::kBFloat16, seed);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
