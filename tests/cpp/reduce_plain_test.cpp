// MIN, MAX, PRODUCT, BAND, BOR and BXOR of the CPU's loops to the bit against the plain reference.
//
//   reduce_plain_test CASE SEED        FASTCOMM_ISA chooses the instruction set
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "check.h"
#include "dtypes.h"
#include "kernels/isa.h"
#include "kernels/reduce_cpu.h"
#include "reference_plain.h"

namespace fastcomm::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kMin,  ReduceOp::kMax, ReduceOp::kProduct,
                             ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor};

/// What a floating-point format is made of, to write its special values.
struct Layout {
  int bits, mantissa;
};
Layout layout_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {32, 23};
    case DType::kFloat64:
      return {64, 52};
    case DType::kFloat16:
      return {16, 10};
    default:
      return {16, 7};
  }
}

/// An element of a float: of the kind that its position has on all ranks, so that equals meet.
uint64_t special_float(DType dtype, size_t position, std::mt19937_64& random) {
  const Layout form = layout_of(dtype);
  const uint64_t sign = random() % 2 << (form.bits - 1);
  const uint64_t mantissa = random() & ((uint64_t{1} << form.mantissa) - 1);
  const uint64_t exponents = (uint64_t{1} << (form.bits - 1 - form.mantissa)) - 1;
  const uint64_t infinity = exponents << form.mantissa;
  const uint64_t one = exponents / 2 << form.mantissa;
  switch (position % 8) {
    case 0:
      return sign;  // zeros
    case 1:         // a NaN of either sign and any payload among numbers, on few ranks
      return random() % 6 == 0 ? sign | infinity | std::max<uint64_t>(mantissa, 1) : sign | one;
    case 2:
      return random() % 3 == 0 ? sign | infinity : sign | one | mantissa;
    case 3:
      return sign | mantissa;  // subnormals
    case 4:
      return sign | (infinity - 1 - random() % 2);  // the largest
    case 5:
      return random() % 2 == 0 ? sign : sign | (infinity + random() % 2);  // 0 * inf is NaN
    case 6:  // about 1, so that the order of a product shows
      return sign | one | mantissa;
    default:
      return random();
  }
}

std::vector<char> special_input(DType dtype, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 7);
  const size_t size = dtype_size(dtype);
  std::vector<char> data(count * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t value = random();
    if (is_floating(dtype)) {
      value = special_float(dtype, i, random);
    } else if (dtype == DType::kBool) {
      value = i % 3 == 0 ? value % 8 != 0 : value % 2;
    } else if (i % 4 == 0) {  // the ends of the range, and zero
      value = value % 4 == 0 ? 0 : (value % 4 == 1 ? ~uint64_t{0} : uint64_t{1} << (8 * size - 1));
      value -= random() % 2;
    } else if (i % 4 == 1) {
      value |= 1;  // a product of odd numbers never becomes zero
    }
    std::memcpy(&data[i * size], &value, size);
  }
  return data;
}

/// One reduction: into another place, into two, and in place of one input.
void compare(DType dtype, ReduceOp op, int sources, size_t count, uint64_t seed) {
  const size_t element = dtype_size(dtype), bytes = count * element;
  std::vector<std::vector<char>> inputs, memory;
  for (int j = 0; j < sources; ++j) inputs.push_back(special_input(dtype, count, seed * 64 + j));
  const std::vector<char> wanted = reference::reduce_plain(dtype, op, inputs);
  std::vector<const void*> pointers;
  for (int j = 0; j < sources; ++j) {  // each at another distance from an aligned address
    const size_t at = (seed + j) % 9 * element;
    memory.emplace_back(at + bytes + 64, '\x5a');
    std::copy(inputs[j].begin(), inputs[j].end(), memory.back().begin() + at);
    pointers.push_back(memory.back().data() + at);
  }
  const auto check = [&](char* got, const char* how) {
    if (op == ReduceOp::kProduct) reference::forget_payloads(dtype, got, bytes);
    size_t bad = 0;
    while (bad < bytes && got[bad] == wanted[bad]) ++bad;
    EXPECT(bad == bytes, how, ": ", reduce_op_name(op), " of ", dtype_name(dtype), ", ", sources,
           " sources, element ", bad / element, " of ", count);
    EXPECT(got[bytes] == '\x5a', how, ": wrote past the end");
  };
  const ReduceFunction function = reduce_function(dtype, op);
  std::vector<char> first(bytes + 128, '\x5a'), second(bytes + 128, '\x5a');
  char* dst = first.data() + seed % 5 * element;
  char* second_dst = second.data() + (seed + 3) % 5 * element;
  function({dst, nullptr, pointers.data(), sources, count, 1});
  check(dst, "plain");
  function({dst, second_dst, pointers.data(), sources, count, 1});
  check(dst, "first of two");
  check(second_dst, "second of two");
  char* in_place = const_cast<char*>(static_cast<const char*>(pointers[seed % sources]));
  function({in_place, nullptr, pointers.data(), sources, count, 1});
  check(in_place, "in place");
}

void test_bits(uint64_t seed) {
  std::printf("isa %s\n", isa_name());
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      if (why_no_reduction(dtype, op) != nullptr) continue;
      for (const int sources : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17}) {
        for (const size_t count : {0, 1, 7, 16, 31, 64, 65, 515}) {
          compare(dtype, op, sources, count, seed + sources + count);
        }
      }
      compare(dtype, op, 64, 700, seed);
    }
  }
}

/// No mode of the calling thread changes a minimum or a maximum.
void test_flushed(uint64_t seed) {
#if defined(__x86_64__)
  constexpr unsigned kFlush = 0x8000, kDenormalsAreZero = 0x0040;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      for (const int sources : {2, 3}) {
        const size_t count = 512;
        std::vector<std::vector<char>> inputs;
        std::vector<const void*> pointers;
        for (int j = 0; j < sources; ++j) inputs.push_back(special_input(dtype, count, seed + j));
        for (const auto& input : inputs) pointers.push_back(input.data());
        const auto wanted = reference::reduce_plain(dtype, op, inputs);
        std::vector<char> got(count * dtype_size(dtype));
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | kFlush | kDenormalsAreZero);
        reduce_function(dtype, op)({got.data(), nullptr, pointers.data(), sources, count, 1});
        _mm_setcsr(before);
        EXPECT(got == wanted, reduce_op_name(op), " of ", dtype_name(dtype));
      }
    }
  }
#else
  (void)seed;
#endif
}

void test_reasons(uint64_t) {
  int pairs = 0;
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      const char* reason = why_no_reduction(dtype, op);
      pairs += reason == nullptr;
      ErrorCode code{};
      const std::string error = error_of([&] { reduce_function(dtype, op); }, &code);
      EXPECT(error.empty() == (reason == nullptr), dtype_name(dtype), " ", reduce_op_name(op));
      if (reason == nullptr) continue;
      EXPECT(code == ErrorCode::kUnsupported && error.find(reason) != std::string::npos, error);
    }
  }
  // 13 types by SUM, MIN, MAX and PRODUCT, all but bool by AVG; floats by PREMUL_SUM, 9 others by bits.
  EXPECT(pairs == 13 * 4 + 12 + 4 + 9 * 3, pairs);
  EXPECT(why_no_reduction(DType::kFloat32, ReduceOp::kBand) ==
         std::string("bits of integers only"));
  EXPECT(why_no_reduction(DType::kBool, ReduceOp::kAvg) == std::string("use sum or max"));
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"bits", test_bits}, {"flushed", test_flushed}, {"reasons", test_reasons}});
}
