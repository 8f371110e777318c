// The kernels of kernels/cuda/multi_reduce.h, and the one place that chooses among them.
//
// A chunk is the data that a block reduces with all loads of a thread in flight at once: several
// packs, for any number of sources. A pack is as many elements as fill 16 bytes of the smaller of
// the two types. The alignment of a segment's memory decides how it is reduced:
//
//   alike    sources and destinations share an alignment: in packs
//   shifted  they do not: in packs of the first destination, each cut out of two packs of a source
//            (kernels/cuda/reduce_pack.h) that do not share its alignment: twice the loads, of
//            which the second hits the first-level cache. A destination unlike the first is written
//            element by element.
//   single   a destination is a source, and is unlike the first: element by element
//
// The edges of a segment are reduced element by element in any case. Cost: one launch; n sources
// read once, every destination written once; 4, 10 or 32 KB of parameters.
//
// Memory ordering: none (kernels/cuda/chunks.h). A thread reads a position of every source before
// it writes it, and no other thread writes it, so a destination may be a source. A shifted load
// also reads beside its pack, maybe another thread's elements: so its source is never a
// destination, and it never reads outside of the segment. Loads are plain: the read-only path
// excludes that.
//
// The types of gradients have a kernel for each width of the tree, with no more loads in its code
// than sources call for; other types, and conversions, have one for any number of sources. A kernel
// is compiled once for each size of table; those others have the middle size alone, and take more
// launches for a list that does not fit. Also compiled for the host, under the execution shim
// (FC_SHIM), where tables of all sizes share the code.
#include "kernels/cuda/multi_reduce.h"

#include "core/error.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/kernel_types.h"
#include "kernels/cuda/reduce_chunks.h"
#include "kernels/cuda/reduce_table.h"

namespace fastcomm {
namespace {

/// The table is indexed at run time, so it stays in parameter space: a copy would lie in local
/// memory.
template <class In, class Out, int N, int kWords>
__global__ void __launch_bounds__(kTableThreads)
    multi_reduce_kernel(const __grid_constant__ ReduceTable<kWords> table) {
  reduce_chunks<In, Out, N>(table.view());
}

template <int kWords>
using Choice = ReduceKernel<ReduceTable<kWords>>;

template <class In, class Out, int N, int kWords>
Choice<kWords> kernel_of() {
  return {multi_reduce_kernel<In, Out, N, kWords>, InFlight<In, Out, N>::kChunk};
}

/// For the types of gradients.
template <class T, int kWords>
Choice<kWords> kernel_for_sources(int num_sources) {
  switch (tree_width(num_sources)) {
    case 2:
      return kernel_of<T, T, 2, kWords>();
#if defined(FC_FEW_KERNELS)
    default:
      return kernel_of<T, T, 0, kWords>();
#else
    case 1:
      return kernel_of<T, T, 1, kWords>();
    case 4:
      return kernel_of<T, T, 4, kWords>();
    case 8:
      return kernel_of<T, T, 8, kWords>();
    default:
      return kernel_of<T, T, 16, kWords>();
#endif
  }
}

/// One kernel for any number of sources: between two types, and for types that lists seldom have.
Choice<kMediumTable> kernel_for_seldom(const ReduceSpec& spec) {
  return for_sum_type<Choice<kMediumTable>>(spec.in, [&](auto in) {
    using In = typename decltype(in)::Type;
    return for_sum_type<Choice<kMediumTable>>(spec.out, [](auto out) -> Choice<kMediumTable> {
      using Out = typename decltype(out)::Type;
      constexpr bool kSame = std::is_same<In, Out>::value;
      if constexpr (kSame ? !is_short_float<In> : is_short_float<In> && is_short_float<Out>) {
        return kernel_of<In, Out, 0, kMediumTable>();
      }
      return {};
    });
  });
}

/// True if there are kernels for tables of every size. Each size costs another compilation.
bool has_every_table(const ReduceSpec& spec) {
  return spec.in == spec.out &&
         (spec.in == DType::kFloat32 || spec.in == DType::kFloat16 || spec.in == DType::kBFloat16);
}

/// The answer holds nullptr if there is no kernel.
template <int kWords>
Choice<kWords> kernel_for(const ReduceSpec& spec) {
  if (!has_every_table(spec)) {
    if constexpr (kWords == kMediumTable) return kernel_for_seldom(spec);
    return {};
  }
  return for_sum_type<Choice<kWords>>(spec.in, [&](auto tag) -> Choice<kWords> {
    using T = typename decltype(tag)::Type;
    if constexpr (is_short_float<T>) return kernel_for_sources<T, kWords>(spec.num_sources);
    return {};
  });
}

void check_counts(int num_sources, int num_destinations) {
  check_ends("multi_reduce", num_sources, "sources");
  check_ends("multi_reduce", num_destinations, "destinations");
}

void check_spec(const ReduceSpec& spec) {
  check_counts(spec.num_sources, spec.num_destinations);
  if (kernel_for<kMediumTable>(spec).kernel == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat("multi_reduce: no CUDA kernel from ",
                                                dtype_name(spec.in), " to ", dtype_name(spec.out)));
  }
  FC_CHECK(is_floating(spec.in) || spec.scale == 1, "multi_reduce: ", dtype_name(spec.in),
           " cannot be scaled by ", spec.scale);
  // A divisor of integers is converted to their type.
  const bool narrow = !is_floating(spec.in) && spec.in != DType::kBool && dtype_size(spec.in) < 4;
  const int bits = narrow ? 8 * static_cast<int>(dtype_size(spec.in)) - 1 : 31;
  const int most = static_cast<int>((uint32_t{1} << bits) - 1);
  FC_CHECK(spec.divisor >= 1 && spec.divisor <= most, "multi_reduce: divisor ", spec.divisor,
           ", 1 to ", most, " are possible for ", dtype_name(spec.in));
}

/// Enqueues one kernel for as many segments as the table holds; returns their number.
template <int kWords>
int launch_table(const ReduceSegment* segments, int count, const ReduceSpec& spec,
                 cudaStream_t stream, const ChannelState* channel) {
  const Choice<kWords> choice = kernel_for<kWords>(spec);
  ReduceTable<kWords> table;
  table.begin(spec);
  const int taken = table.take(segments, count, spec, choice.chunk, head_with_shifts);
  if (table.count == 0) return taken;
  table.channel = view_of_channel(channel);
  FC_CUDA(FC_LAUNCH(choice.kernel, dim3(blocks_for_chunks(choice.kernel, table.chunks)),
                    dim3(kTableThreads), stream, table),
          "multi_reduce of ", table.count, " segments");
  return taken;
}

}  // namespace

int max_reduce_segments(int num_sources, int num_destinations) {
  check_counts(num_sources, num_destinations);
  return kLargeTable / record_words<SegmentHead>(num_sources, num_destinations);
}

void check_multi_reduce(const ReduceSpec& spec) { check_spec(spec); }

void load_multi_reduce(int num_sources) {
  check_counts(num_sources, 1);
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    const auto type = static_cast<DType>(dtype);
    const ReduceSpec spec{type, type, num_sources, 1};
    load_kernel(kernel_for<kSmallTable>(spec).kernel);
    load_kernel(kernel_for<kMediumTable>(spec).kernel);
    load_kernel(kernel_for<kLargeTable>(spec).kernel);
  }
}

void load_conversion(DType in, DType out) {
  load_kernel(kernel_for_seldom({in, out, 1, 1}).kernel);
}

void launch_multi_reduce(const ReduceSegment* segments, int count, const ReduceSpec& spec,
                         cudaStream_t stream, const ChannelState* channel) {
  FC_CHECK(count >= 0, "multi_reduce: ", count, " segments");
  check_spec(spec);
  const int words = record_words<SegmentHead>(spec.num_sources, spec.num_destinations);
  for (int done = 0; done < count;) {
    const int rest = count - done;
    const ReduceSegment* const next = segments + done;
    if (!has_every_table(spec)) {
      done += launch_table<kMediumTable>(next, rest, spec, stream, channel);
      continue;
    }
    done += rest <= kSmallTable / words
                ? launch_table<kSmallTable>(next, rest, spec, stream, channel)
            : rest <= kMediumTable / words
                ? launch_table<kMediumTable>(next, rest, spec, stream, channel)
                : launch_table<kLargeTable>(next, rest, spec, stream, channel);
  }
}

}  // namespace fastcomm
