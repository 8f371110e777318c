// The CPU's loops alone, on one core and memory in its cache, beside loops written by hand
// (loop_floor.h) where the instruction set has some: reductions, conversions, error feedback,
// norms.
//
//   reduce_loops BYTES SAMPLES        FASTCOMM_ISA chooses the instruction set
//
// Prints a line for each case: KIND DTYPE SOURCES DESTINATIONS, then SAMPLES times in ns of the
// library's loop, "|", and as many of the one by hand, or none. BYTES are those of a source; of
// conversions, and of feedback, as many fp32 as fit. Both loops run in turn.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "kernels/gradient_cpu.h"
#include "kernels/isa.h"
#include "kernels/reduce_cpu.h"
#include "loop_floor.h"

namespace fastcomm {
namespace {

constexpr int kMostSources = 8;

const floor_loops::Loops* loops_by_hand() {
#if defined(FC_HAVE_AVX512)
  if (chosen_isa() == Isa::kAvx512) return floor_loops::avx512_loops();
#endif
#if defined(FC_HAVE_AVX2)
  if (chosen_isa() == Isa::kAvx2) return floor_loops::avx2_loops();
#endif
  return nullptr;
}

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char[], FreeMemory>;

class Benchmark {
 public:
  Benchmark(size_t bytes, int samples) : bytes_(bytes), samples_(samples) {
    for (int i = 0; i < kMostSources + 3; ++i) {
      memory_.emplace_back(static_cast<char*>(std::aligned_alloc(4096, 2 * bytes)));
    }
  }

  /// Numbers near 1, so that nothing is subnormal.
  void fill(DType dtype) {
    for (const Memory& memory : memory_) {
      for (size_t i = 0; i < bytes_ / dtype_size(dtype); ++i) put(memory.get(), dtype, i);
    }
    dtype_ = dtype;
  }

  using Loop = std::function<void()>;
  void time(const char* kind, int sources, int destinations, const Loop& ours, const Loop& other) {
    std::vector<long> times[2];
    const Loop* const loops[] = {&ours, &other};
    for (int i = -3; i < samples_; ++i) {  // the first ones warm up
      for (int side = 0; side < 2; ++side) {
        if (!*loops[side]) continue;
        const auto start = Clock::now();
        (*loops[side])();
        const auto taken = Clock::now() - start;
        if (i >= 0) times[side].push_back(std::chrono::nanoseconds(taken).count());
      }
    }
    std::printf("%s %s %d %d", kind, dtype_name(dtype_), sources, destinations);
    for (const long ns : times[0]) std::printf(" %ld", ns);
    std::printf(" |");
    for (const long ns : times[1]) std::printf(" %ld", ns);
    std::printf("\n");
  }

  void reductions(int sources, int destinations) {
    const void* from[kMostSources];
    for (int i = 0; i < sources; ++i) from[i] = memory_[i].get();
    char* const dst = memory_[kMostSources].get();
    char* const second = destinations == 2 ? memory_[kMostSources + 1].get() : nullptr;
    const size_t count = bytes_ / dtype_size(dtype_);
    ReduceSpan span{dst, second, from, sources, count, 1};
    const ReduceFunction sum = reduce_function(dtype_, ReduceOp::kSum);
    const floor_loops::Loops* hand = loops_by_hand();
    const int place = dtype_ == DType::kFloat32    ? 0
                      : dtype_ == DType::kBFloat16 ? 1
                      : dtype_ == DType::kFloat16  ? 2
                                                   : -1;
    const auto by_hand = [&](floor_loops::Finish finish) -> Loop {
      if (hand == nullptr || place < 0) return {};
      return [=, &from] { hand->sums[place][sources][finish](from, count, dst, second, 2, 0.5); };
    };
    time("sum", sources, destinations, [&] { sum(span); }, by_hand(floor_loops::kNothing));
    if (sources != 2) return;
    span.divisor = 2;
    time("avg", sources, destinations, [&] { sum(span); }, by_hand(floor_loops::kDivided));
    span.scale = 0.5;
    time(
        "scaled", sources, destinations, [&] { sum(span); },
        by_hand(floor_loops::kDividedAndScaled));
    span = ReduceSpan{dst, second, from, sources, count, 1};
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kProduct}) {
      const ReduceFunction function = reduce_function(dtype_, op);
      time(reduce_op_name(op), sources, destinations, [&] { function(span); }, {});
    }
  }

  void conversions(DType narrow) {
    const size_t count = bytes_ / sizeof(float);
    char* const single = memory_[0].get();
    char* const half = memory_[1].get();
    const floor_loops::Loops* hand = loops_by_hand();
    const int place = narrow == DType::kBFloat16 ? 0 : 1;
    fill(DType::kFloat32);
    dtype_ = narrow;
    const ConvertFunction down = convert_function(narrow, DType::kFloat32);
    const ConvertFunction up = convert_function(DType::kFloat32, narrow);
    const FeedbackFunction feedback = feedback_function(narrow);
    Loop other_down, other_up;
    if (hand != nullptr) {
      other_down = [=] { hand->narrow[place](single, count, half); };
      other_up = [=] { hand->widen[place](half, count, single); };
    }
    time("narrow", 1, 1, [&] { down(half, single, count); }, other_down);
    time("feedback", 1, 1,
         [&] {
           feedback(half, reinterpret_cast<float*>(single),
                    reinterpret_cast<float*>(memory_[2].get()), count);
         },
         {});
    time("widen", 1, 1, [&] { up(single, half, count); }, other_up);
  }

  /// Of blocks of kNormUnit, as gradients are.
  void norms() {
    constexpr size_t kUnit = 4096;
    const size_t size = dtype_size(dtype_), count = bytes_ / size;
    static const std::pair<NormKind, const char*> kinds[] = {{NormKind::kNone, "finite"},
                                                             {NormKind::kOne, "norm-1"},
                                                             {NormKind::kTwo, "norm-2"},
                                                             {NormKind::kInfinity, "norm-inf"}};
    for (const auto& [kind, name] : kinds) {
      const NormFunction norm = norm_function(dtype_, kind);
      time(name, 1, 0,
           [&] {
             for (size_t i = 0; i + kUnit <= count; i += kUnit) {
               NormLanes lanes;
               norm(lanes, memory_[0].get() + i * size, kUnit);
               block_norm(lanes, kind);
             }
           },
           {});
    }
  }

 private:
  static void put(char* memory, DType dtype, size_t i) {
    const float value = 1.0f + static_cast<float>(i % 7) / 8;
    switch (dtype) {
      case DType::kFloat32:
        std::memcpy(memory + i * 4, &value, 4);
        break;
      case DType::kFloat64: {
        const double wide = value;
        std::memcpy(memory + i * 8, &wide, 8);
        break;
      }
      case DType::kFloat16:
      case DType::kBFloat16: {
        const uint16_t bits =
            dtype == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
        std::memcpy(memory + i * 2, &bits, 2);
        break;
      }
      default:
        std::memset(memory + i * dtype_size(dtype), static_cast<int>(i % 3), dtype_size(dtype));
    }
  }

  const size_t bytes_;
  const int samples_;
  DType dtype_ = DType::kFloat32;
  std::vector<Memory> memory_;
};

void run(size_t bytes, int samples) {
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(sched_getcpu(), &own);
  sched_setaffinity(0, sizeof(own), &own);
  Benchmark benchmark(bytes, samples);
  std::printf("isa %s\n", isa_name());
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                            DType::kInt32, DType::kInt8, DType::kBool}) {
    benchmark.fill(dtype);
    for (int destinations = 1; destinations <= 2; ++destinations) {
      for (int sources = 1; sources <= kMostSources; ++sources) {
        benchmark.reductions(sources, destinations);
      }
    }
    if (is_floating(dtype)) benchmark.norms();
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) benchmark.conversions(dtype);
}

}  // namespace
}  // namespace fastcomm

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s BYTES SAMPLES\n", argv[0]);
    return 2;
  }
  try {
    fastcomm::chosen_isa();
  } catch (const fastcomm::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  fastcomm::run(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]));
  return 0;
}
