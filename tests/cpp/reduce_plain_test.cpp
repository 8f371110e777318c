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
#include "special_values.h"

namespace fastcomm::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kMin,  ReduceOp::kMax, ReduceOp::kProduct,
                             ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor};

/// One reduction: to another place, to two places, and in place of one input.
void compare(DType dtype, ReduceOp op, int sources, size_t count, uint64_t seed) {
  const size_t element = dtype_size(dtype), bytes = count * element;
  std::vector<std::vector<char>> inputs, memory;
  for (int j = 0; j < sources; ++j) inputs.push_back(special_input(dtype, count, seed * 64 + j));
  const std::vector<char> wanted = reference::reduce_plain(dtype, op, inputs);
  std::vector<const void*> pointers;
  for (int j = 0; j < sources; ++j) {  // each at a different distance from an aligned address
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
