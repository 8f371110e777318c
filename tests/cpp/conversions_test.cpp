// Loops that convert, against the functions of core/numeric.h, which reduce_test compares with their definitions.
//
//   conversions_test CASE SEED        FASTCOMM_ISA chooses the instruction set
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>
#include <thread>

#include "check.h"
#include "kernels/gradient_cpu.h"
#include "kernels/isa.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kPiece = 4096;
constexpr uint64_t kPieces = (uint64_t{1} << 32) / kPiece;

/// Flushes subnormals to zero in this thread, where that can be done.
void flush_subnormals(bool on) {
#if defined(__x86_64__)
  constexpr unsigned kModes = 0x8040;
  _mm_setcsr(on ? _mm_getcsr() | kModes : _mm_getcsr() & ~kModes);
#else
  static_cast<void>(on);
#endif
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

void test_few(uint64_t) { compare_each(4093); }
void test_some(uint64_t) { compare_each(61); }
void test_all(uint64_t) { compare_each(1); }
void test_feedback(uint64_t seed) {
  compare_feedback<Half>(DType::kFloat16, seed);
  compare_feedback<BFloat16>(DType::kBFloat16, seed);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(
      argc, argv,
      {{"few", test_few}, {"some", test_some}, {"all", test_all}, {"feedback", test_feedback}});
}
