// The CPU's reduction loops to the bit against the plain reference.
//
//   reduce_test CASE SEED        FASTCOMM_ISA chooses the instruction set
#include <algorithm>

#include "check.h"
#include "dtypes.h"
#include "flush_subnormals.h"
#include "kernels/isa.h"
#include "kernels/reduce_cpu.h"
#include "random_values.h"
#include "reference_plain.h"
#include "reference_tree.h"
#include "special_values.h"

namespace fastcomm::testing {
namespace {

using Bytes = std::vector<char>;

constexpr ReduceOp kOps[] = {ReduceOp::kSum,     ReduceOp::kAvg,  ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct, ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor};

bool sums(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; }

Bytes reduced(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  if (!sums(op)) return reference::reduce_plain(dtype, op, inputs);
  const int divisor = op == ReduceOp::kAvg ? static_cast<int>(inputs.size()) : 1;
  return reference::reduce(dtype, inputs, divisor);
}

/// One reduction: to another place, to two places, and in place of one input.
void compare(DType dtype, ReduceOp op, int sources, size_t count, uint64_t seed) {
  const size_t element = dtype_size(dtype), bytes = count * element;
  std::vector<Bytes> inputs, memory;
  std::vector<const void*> pointers;
  for (int j = 0; j < sources; ++j) {
    const auto input = sums(op) ? random_input : special_input;
    inputs.push_back(input(dtype, count, seed * 64 + j));
    const size_t at = (seed + j) % 9 * element;  // each at a different distance from a boundary
    memory.emplace_back(at + bytes + 64, '\x5a');
    std::copy(inputs[j].begin(), inputs[j].end(), memory.back().begin() + at);
    pointers.push_back(memory.back().data() + at);
  }
  const Bytes wanted = reduced(dtype, op, inputs);
  const auto check = [&](char* got, const char* how) {
    if (op == ReduceOp::kProduct) reference::forget_payloads(dtype, got, bytes);
    const size_t same = std::mismatch(wanted.begin(), wanted.end(), got).first - wanted.begin();
    EXPECT(same == bytes, how, ": ", reduce_op_name(op), " of ", dtype_name(dtype), ", ", sources,
           " sources, element ", same / element, " of ", count);
    EXPECT(got[bytes] == '\x5a', how, ": wrote past the end");
  };
  const ReduceFunction function = reduce_function(dtype, op);
  const int divisor = op == ReduceOp::kAvg ? sources : 1;
  Bytes first(bytes + 128, '\x5a'), second(bytes + 128, '\x5a');
  char* dst = first.data() + seed % 5 * element;
  char* second_dst = second.data() + (seed + 3) % 5 * element;
  function({dst, nullptr, pointers.data(), sources, count, divisor});
  check(dst, "plain");
  function({dst, second_dst, pointers.data(), sources, count, divisor});
  check(dst, "first of two");
  check(second_dst, "second of two");
  char* in_place = const_cast<char*>(static_cast<const char*>(pointers[seed % sources]));
  function({in_place, second_dst, pointers.data(), sources, count, divisor});
  check(in_place, "in place");
  check(second_dst, "second beside in place");
}

CASE(bits) {
  std::printf("isa %s\n", isa_name());
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      if (why_no_reduction(dtype, op) != nullptr) continue;
      for (int sources = 1; sources <= 20; ++sources) {
        if (!sums(op) && sources > 9 && sources / 2 != 8) continue;  // two of them are enough
        for (const size_t count : {0, 1, 7, 31, 64, 65, 511, 1025}) {
          compare(dtype, op, sources, count, seed + sources + count);
        }
      }
      compare(dtype, op, 64, 700, seed);
    }
  }
}

void compare_flushed(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  const size_t bytes = inputs[0].size();
  const auto sources = static_cast<int>(inputs.size());
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes got(bytes);
  for (const bool flushed : {false, true}) {
    flush_subnormals(flushed);
    reduce_function(
        dtype, op)({got.data(), nullptr, pointers.data(), sources, bytes / dtype_size(dtype), 1});
    flush_subnormals(false);
    EXPECT(got == reduced(dtype, op, inputs), reduce_op_name(op), " of ", dtype_name(dtype), ", ",
           sources, " sources, flushed ", flushed);
  }
}

/// Sums of fp16, minima and maxima are the same whatever mode the calling thread is in.
CASE(flushed) {
  std::mt19937_64 bits(seed);
  for (int sources = 1; sources <= 20; ++sources) {
    std::vector<Bytes> inputs;
    for (int j = 0; j < sources; ++j) {
      inputs.emplace_back(999 * 2);
      for (size_t i = 0; i < 999; ++i) {  // subnormal and small, of both signs
        const auto half = static_cast<uint16_t>((bits() % 0x0c00) | (bits() % 2 << 15));
        std::memcpy(inputs[j].data() + 2 * i, &half, 2);
      }
    }
    compare_flushed(DType::kFloat16, ReduceOp::kSum, inputs);
  }
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      std::vector<Bytes> inputs{special_input(dtype, 512, seed)};
      for (int sources = 2; sources <= 3; ++sources) {
        inputs.push_back(special_input(dtype, 512, seed + sources));
        compare_flushed(dtype, op, inputs);
      }
    }
  }
}

/// The mean over more ranks than a byte can count, as several hosts may have.
template <class T>
void compare_means(DType dtype) {
  std::vector<T> a(300), b(300), mean(300);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<T>(i);
    b[i] = static_cast<T>(3 * i + 1);
  }
  const void* const sources[] = {a.data(), b.data()};
  for (const int divisor : {2, 127, 128, 200, 255, 256, 257, 4096}) {
    reduce_function(
        dtype, ReduceOp::kAvg)(ReduceSpan{mean.data(), nullptr, sources, 2, mean.size(), divisor});
    for (size_t i = 0; i < a.size(); ++i) {
      const int64_t sum = static_cast<T>(a[i] + b[i]);
      EXPECT(mean[i] == static_cast<T>(sum / divisor), dtype_name(dtype), " ", divisor);
    }
  }
}

CASE(large_groups) {
  compare_means<int8_t>(DType::kInt8);
  compare_means<uint8_t>(DType::kUInt8);
  compare_means<int16_t>(DType::kInt16);
  compare_means<int32_t>(DType::kInt32);
  compare_means<int64_t>(DType::kInt64);
}

CASE(reasons) {
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
  // 13 types by SUM, MIN, MAX and PRODUCT, all but bool by AVG; floats by PREMUL_SUM, 9 others by
  // bits.
  EXPECT(pairs == 13 * 4 + 12 + 4 + 9 * 3, pairs);
  EXPECT(why_no_reduction(DType::kFloat32, ReduceOp::kBand) ==
         std::string("bits of integers only"));
  EXPECT(why_no_reduction(DType::kBool, ReduceOp::kAvg) == std::string("use sum or max"));
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
