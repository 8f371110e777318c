// The kernels of kernels/cuda/multi_reduce.h, their table, and the one place that chooses among them.
//
// A chunk is what a block reduces with all loads of a thread in flight at once. A thread works on
// packs: as many elements as fill 16 bytes of the smaller of the two types. Where sources and
// destinations share an alignment, a segment's edges are reduced element by element, else all of it.
// Cost: one launch; n sources read once, every destination written once; 4 KB of parameters, or
// about 32 KB for a table that does not fit those.
//
// Memory ordering: none (kernels/cuda/chunks.h). A thread reads a position of every source before it
// writes it, and no other thread touches it, so a destination may be a source. Loads are plain: the
// read-only path excludes that.
//
// The number of sources is a constant of the kernel where that is common, so that few sources have
// several packs in flight; the others share a kernel that reads it at run time. Also compiled for
// the host, under the execution shim (FC_SHIM).
#include "kernels/cuda/multi_reduce.h"

#include <limits>
#include <type_traits>

#include "core/error.h"
#include "core/numeric.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_pack.h"

namespace fastcomm {
namespace {

static_assert(kMaxReduceSources <= kMaxTreeSources, "the tree is wide enough");

/// A record of the table: a head, then the sources, then the destinations.
struct SegmentHead {
  uint32_t first_chunk;  // of the launch
  uint16_t lead;    // elements from a pack to the segment's begin: chunks are counted from there
  uint16_t packed;  // 1: sources and destinations share an alignment
  uint64_t count;   // elements, more than 0
};
constexpr int kHeadWords = sizeof(SegmentHead) / sizeof(uint64_t);
static_assert(sizeof(SegmentHead) == kHeadWords * sizeof(uint64_t), "no padding");

constexpr int kSmallTable = 500;   // words: 4 KB of parameters with what stands beside them
constexpr int kLargeTable = 4088;  // 32 KB

template <int kWords>
struct ReduceTable {
  uint32_t chunks;
  int count;
  int num_sources;
  int num_destinations;
  int divisor;
  float scale_float;  // the scale in either accumulator
  double scale_double;
  uint64_t words[kWords];

  /// Words of a record.
  FC_HD int stride() const { return kHeadWords + num_sources + num_destinations; }
  FC_HD uint32_t first_chunk(int record) const {
    return static_cast<uint32_t>(words[record * stride()]);
  }
};
static_assert(sizeof(ReduceTable<kLargeTable>) <= kMaxParameterBytes, "parameters");

/// What a thread does at once. N: sources, 0 where their number is known at run time.
template <class In, class Out, int N>
struct Shape {
  static constexpr int kPackElements =
      kPackBytes / (sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out));
  static constexpr int kPacks = N == 0 || N > kPacksInFlight ? 1 : kPacksInFlight / N;
  static constexpr int kChunk = kTableThreads * kPacks * kPackElements;  // elements
};

/// sum / divisor * scale, each step rounded in the accumulator.
template <class In, class Table>
FC_DEVICE typename Numeric<In>::Acc epilogue(typename Numeric<In>::Acc sum, const Table& table) {
  using Acc = typename Numeric<In>::Acc;
  if (table.divisor != 1) sum = Numeric<In>::divide(sum, table.divisor);
  if constexpr (std::is_same<Acc, float>::value) {
    if (table.scale_float != 1) sum = mul_rn(sum, table.scale_float);
  } else if constexpr (std::is_same<Acc, double>::value) {
    if (table.scale_double != 1) sum = mul_rn(sum, table.scale_double);
  }
  return sum;
}

/// One thread's view of a segment.
template <class In, class Out, int N, class Table>
struct SegmentWorker {
  static constexpr int kWidth = N == 0 ? kMaxTreeSources : tree_width(N);

  const Table& table;
  int at;  // the record's first word

  FC_DEVICE int num_sources() const { return N == 0 ? table.num_sources : N; }
  FC_DEVICE const char* source(int j) const {
    return reinterpret_cast<const char*>(table.words[at + kHeadWords + j]);
  }
  FC_DEVICE char* destination(int d) const {
    return reinterpret_cast<char*>(table.words[at + kHeadWords + num_sources() + d]);
  }

  /// Reduces kMany groups of elements, each as one RawIn or several, `step` elements apart, those
  /// that begin below `end`. A group is as many elements as a RawOut or several hold.
  template <class RawIn, class RawOut, int kElements, int kMany>
  FC_DEVICE void reduce(uint64_t first, uint64_t step, uint64_t begin, uint64_t end) const {
    constexpr int kLanesIn = kLanes<In, RawIn>;
    constexpr int kLanesOut = kLanes<Out, RawOut>;
    Lanes<In, kLanesIn> sums[kMany][kElements / kLanesIn];
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      const uint64_t i = first + k * step;
      FC_UNROLL
      for (int part = 0; part < kElements / kLanesIn; ++part) {
        sums[k][part] =
            sum_sources<In, RawIn, kWidth>(0, num_sources(), i >= begin && i < end, [&](int j) {
              return reinterpret_cast<const RawIn*>(source(j) + i * sizeof(In))[part];
            });
      }
    }
    RawOut results[kMany][kElements / kLanesOut];
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      Out out[kElements];
      FC_UNROLL
      for (int e = 0; e < kElements; ++e) {
        out[e] = Numeric<Out>::store(epilogue<In>(sums[k][e / kLanesIn].acc[e % kLanesIn], table));
      }
      memcpy(results[k], out, sizeof(out));
    }
    for (int d = 0; d < table.num_destinations; ++d) {
      FC_UNROLL
      for (int k = 0; k < kMany; ++k) {
        const uint64_t i = first + k * step;
        FC_UNROLL
        for (int part = 0; part < kElements / kLanesOut; ++part) {
          if (i < begin || i >= end) continue;
          reinterpret_cast<RawOut*>(destination(d) + i * sizeof(Out))[part] = results[k][part];
        }
      }
    }
  }
};

/// The table is indexed at run time, so it stays in parameter space: a copy would lie in local
/// memory.
template <class In, class Out, int N, int kWords>
__global__ void __launch_bounds__(kTableThreads)
    multi_reduce_kernel(const __grid_constant__ ReduceTable<kWords> table) {
  using Kind = Shape<In, Out, N>;
  constexpr uint64_t kElements = Kind::kPackElements;
  int segment = 0;
  for (uint32_t chunk = first_chunk_of_block(); chunk < table.chunks; chunk += gridDim.x) {
    segment =
        segment_of_chunk([&](int i) { return table.first_chunk(i); }, table.count, segment, chunk);
    const SegmentWorker<In, Out, N, ReduceTable<kWords>> worker{table, segment * table.stride()};
    SegmentHead head;
    memcpy(&head, &table.words[worker.at], sizeof(head));
    // Positions count from the pack that the segment begins in, elements from its begin.
    const uint64_t lead = head.lead;
    const uint64_t at = uint64_t{chunk - head.first_chunk} * Kind::kChunk;
    const uint64_t low = at < lead ? lead : at;
    const uint64_t high =
        at + Kind::kChunk < lead + head.count ? at + Kind::kChunk : lead + head.count;
    uint64_t pack_low = low + (kElements - 1);
    pack_low -= pack_low % kElements;
    uint64_t pack_high = high - high % kElements;
    if (head.packed == 0 || pack_high < pack_low) pack_low = pack_high = low;
    if (pack_low < pack_high) {
      worker.template reduce<uint4, uint4, kElements, Kind::kPacks>(
          at + threadIdx.x * kElements - lead, blockDim.x * kElements, pack_low - lead,
          pack_high - lead);
    }
    const uint64_t single = (pack_low - low) + (high - pack_high);
    for (uint64_t i = threadIdx.x; i < single; i += blockDim.x) {
      const uint64_t position = low + i < pack_low ? low + i : low + i + (pack_high - pack_low);
      worker.template reduce<In, Out, 1, 1>(position - lead, 0, 0, high - lead);
    }
  }
}

template <int kWords>
struct Choice {
  void (*kernel)(ReduceTable<kWords>) = nullptr;
  uint64_t chunk = 0;  // elements
};

template <class In, class Out, int N, int kWords>
Choice<kWords> kernel_of() {
  return {multi_reduce_kernel<In, Out, N, kWords>, Shape<In, Out, N>::kChunk};
}

/// For what gradients are made of; everything else has one kernel for any number of sources.
template <class T, int kWords>
Choice<kWords> kernel_for_sources(int num_sources) {
  switch (num_sources) {
#if !defined(FC_FEW_KERNELS)
    case 1:
      return kernel_of<T, T, 1, kWords>();
    case 4:
      return kernel_of<T, T, 4, kWords>();
    case 8:
      return kernel_of<T, T, 8, kWords>();
#endif
    case 2:
      return kernel_of<T, T, 2, kWords>();
    default:
      return kernel_of<T, T, 0, kWords>();
  }
}

template <class In, int kWords>
Choice<kWords> kernel_for_output(const ReduceSpec& spec) {
  if (spec.in == spec.out) return kernel_for_sources<In, kWords>(spec.num_sources);
  switch (spec.out) {
    case DType::kFloat32:
      return kernel_of<In, float, 0, kWords>();
    case DType::kBFloat16:
      return kernel_of<In, BFloat16, 0, kWords>();
#if !defined(FC_FEW_KERNELS)
    case DType::kFloat16:
      return kernel_of<In, Half, 0, kWords>();
#endif
    default:
      return {};
  }
}

/// No kernel: nullptr in the answer.
template <int kWords>
Choice<kWords> kernel_for(const ReduceSpec& spec) {
  switch (spec.in) {
    case DType::kFloat32:
      return kernel_for_output<float, kWords>(spec);
    case DType::kBFloat16:
      return kernel_for_output<BFloat16, kWords>(spec);
#if !defined(FC_FEW_KERNELS)
    case DType::kFloat16:
      return kernel_for_output<Half, kWords>(spec);
    default:
      break;
  }
  if (spec.in != spec.out) return {};
  switch (spec.in) {
    case DType::kFloat64:
      return kernel_of<double, double, 0, kWords>();
    case DType::kInt8:
      return kernel_of<int8_t, int8_t, 0, kWords>();
    case DType::kUInt8:
      return kernel_of<uint8_t, uint8_t, 0, kWords>();
    case DType::kInt16:
      return kernel_of<int16_t, int16_t, 0, kWords>();
    case DType::kInt32:
      return kernel_of<int32_t, int32_t, 0, kWords>();
    case DType::kInt64:
      return kernel_of<int64_t, int64_t, 0, kWords>();
    case DType::kBool:
      return kernel_of<Bool, Bool, 0, kWords>();
#endif
    default:
      return {};
  }
}

bool is_integer(DType dtype) {
  return dtype != DType::kFloat32 && dtype != DType::kFloat64 && dtype != DType::kFloat16 &&
         dtype != DType::kBFloat16;
}

void check_counts(int num_sources, int num_destinations) {
  FC_CHECK(num_sources >= 1 && num_sources <= kMaxReduceSources, "multi_reduce: ", num_sources,
           " sources, 1 to ", kMaxReduceSources, " are possible");
  FC_CHECK(num_destinations >= 1 && num_destinations <= kMaxReduceSources,
           "multi_reduce: ", num_destinations, " destinations, 1 to ", kMaxReduceSources,
           " are possible");
}

void check_spec(const ReduceSpec& spec) {
  check_counts(spec.num_sources, spec.num_destinations);
  if (kernel_for<kSmallTable>(spec).kernel == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat("multi_reduce: no CUDA kernel from ",
                                                dtype_name(spec.in), " to ", dtype_name(spec.out)));
  }
  FC_CHECK(!is_integer(spec.in) || spec.scale == 1, "multi_reduce: ", dtype_name(spec.in),
           " cannot be scaled by ", spec.scale);
  // A divisor of integers is converted to their type.
  const bool narrow = is_integer(spec.in) && spec.in != DType::kBool && dtype_size(spec.in) < 4;
  const int bits = narrow ? 8 * static_cast<int>(dtype_size(spec.in)) - 1 : 31;
  const int most = static_cast<int>((uint32_t{1} << bits) - 1);
  FC_CHECK(spec.divisor >= 1 && spec.divisor <= most, "multi_reduce: divisor ", spec.divisor,
           ", 1 to ", most, " are possible for ", dtype_name(spec.in));
}

/// Which elements of the segment can be moved in packs.
SegmentHead head_of(const ReduceSegment& segment, const ReduceSpec& spec) {
  uintptr_t any = 0;    // a bit that one address has
  uintptr_t apart = 0;  // a bit in which two addresses differ
  const uintptr_t one = address_of(segment.sources[0]);
  const auto look = [&](const void* pointer, DType dtype) {
    FC_CHECK(address_of(pointer) % dtype_size(dtype) == 0,
             "multi_reduce: a source or destination is not aligned to ", dtype_name(dtype));
    any |= address_of(pointer);
    apart |= address_of(pointer) ^ one;
  };
  for (int j = 0; j < spec.num_sources; ++j) look(segment.sources[j], spec.in);
  for (int d = 0; d < spec.num_destinations; ++d) look(segment.destinations[d], spec.out);
  // Types of two sizes keep step with each other only from a pack on.
  const uint64_t size = dtype_size(spec.in);
  const bool same = size == dtype_size(spec.out);
  SegmentHead head{};
  head.packed = (same ? apart : any) % kPackBytes == 0 ? 1 : 0;
  head.lead = static_cast<uint16_t>(head.packed != 0 ? one % kPackBytes / size : 0);
  head.count = segment.count;
  return head;
}

/// Enqueues one kernel for as many segments as the table holds; returns how many it has taken.
template <int kWords>
int launch_table(const ReduceSegment* segments, int count, const ReduceSpec& spec,
                 cudaStream_t stream) {
  const Choice<kWords> choice = kernel_for<kWords>(spec);
  ReduceTable<kWords> table;  // not cleared: the kernel reads `count` records
  table.count = 0;
  table.num_sources = spec.num_sources;
  table.num_destinations = spec.num_destinations;
  table.divisor = spec.divisor;
  table.scale_float = static_cast<float>(spec.scale);
  table.scale_double = spec.scale;
  const int capacity = kWords / table.stride();
  uint64_t chunks = 0;
  int taken = 0;
  for (; taken < count && table.count < capacity; ++taken) {
    const ReduceSegment& segment = segments[taken];
    if (segment.count == 0) continue;
    SegmentHead head = head_of(segment, spec);
    head.first_chunk = static_cast<uint32_t>(chunks);
    uint64_t* record = table.words + table.count++ * table.stride();
    memcpy(record, &head, sizeof(head));
    record += kHeadWords;
    for (int j = 0; j < spec.num_sources; ++j) *record++ = address_of(segment.sources[j]);
    for (int d = 0; d < spec.num_destinations; ++d) *record++ = address_of(segment.destinations[d]);
    chunks += (head.lead + segment.count + choice.chunk - 1) / choice.chunk;
    FC_CHECK(chunks < uint64_t{1} << 31, "multi_reduce: more elements than one launch can count");
  }
  if (table.count == 0) return taken;
  table.chunks = static_cast<uint32_t>(chunks);
  FC_LAUNCH(choice.kernel, dim3(blocks_for_chunks(chunks)), dim3(kTableThreads), stream, table);
  check_cuda(cudaGetLastError(), "multi_reduce: launch");
  return taken;
}

}  // namespace

int max_reduce_segments(int num_sources, int num_destinations) {
  check_counts(num_sources, num_destinations);
  return kLargeTable / (kHeadWords + num_sources + num_destinations);
}

void launch_multi_reduce(const ReduceSegment* segments, int count, const ReduceSpec& spec,
                         cudaStream_t stream) {
  FC_CHECK(count >= 0, "multi_reduce: ", count, " segments");
  check_spec(spec);
  const int small = kSmallTable / (kHeadWords + spec.num_sources + spec.num_destinations);
  for (int done = 0; done < count;) {
    const int rest = count - done;
    done += rest <= small ? launch_table<kSmallTable>(segments + done, rest, spec, stream)
                          : launch_table<kLargeTable>(segments + done, rest, spec, stream);
  }
}

}  // namespace fastcomm
