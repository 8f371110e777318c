// The kernels of kernels/cuda/multi_gradient.h, and the one place that chooses among them.
//
// A chunk is a block of kNormBlock elements, which a thread block reduces in packs
// (kernels/cuda/reduce_table.h), leaving each result in shared memory too. Then 32 threads take a
// lane of the norm each. The lanes are chains of additions, which other thread blocks of the
// processor work beside. Cost: n sources read once, the destination written once, 16 bytes of norm
// a block; 4, 10 or 32 KB of parameters. A tensor without elements has one empty block, so
// that it has a norm.
//
// Memory ordering. Within a thread block, barriers: results are in shared memory before a lane is
// summed; a lane is summed before it is joined. Nothing orders thread blocks: each writes what no
// other one does, and the kernel that joins norms comes behind in the stream.
#include "kernels/cuda/multi_gradient.h"

#include <algorithm>
#include <vector>

#include "core/control.h"
#include "core/error.h"
#include "core/numeric.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/reduce_table.h"

namespace fastcomm {
namespace {

/// What the kernels leave for the one that joins.
struct NormNotes {
  BlockNorm* norms;    // of each block of the list
  uint32_t* first_of;  // for each segment its first block
};

struct GradientHead : SegmentHead {
  uint32_t segment;      // of the list
  uint32_t first_block;  // of the list
};

template <int kWords>
struct GradientTable : ReduceTable<kWords, GradientHead> {
  NormNotes notes;
  NormKind norm;
};

constexpr int kSmallGradients = kSmallTable;
constexpr int kLargeGradients = kLargeTable - 4;  // room for the rest of the table
static_assert(sizeof(GradientTable<kLargeGradients>) <= kMaxParameterBytes, "parameters");

/// A barrier of the thread block; whether all of its threads say yes.
FC_DEVICE bool all_agree(bool yes) {
  if (FC_LEFT_OUT(Control::kNoBarrier)) return yes;
  return __syncthreads_and(yes) != 0;
}

/// A barrier between the widths of the tree over lanes.
FC_DEVICE void next_width() {
  if (!FC_LEFT_OUT(Control::kNoLaneBarrier)) __syncthreads();
}

/// Results of a chunk in shared memory, at their positions in it.
template <class T>
struct Kept {
  T* values;
  uint64_t first;  // position less element
  bool& finite;

  template <class Raw>
  FC_DEVICE void operator()(uint64_t element, const Raw (&raw)[1]) const {
    constexpr int kCount = kLanes<T, Raw>;
    reinterpret_cast<Raw*>(values)[(element + first) / kCount] = raw[0];
    T results[kCount];
    memcpy(results, raw, sizeof(results));
    FC_UNROLL
    for (int e = 0; e < kCount; ++e) {
      const auto value = Numeric<T>::load(results[e]);
      finite = finite && value - value == 0;
    }
  }
};

/// load(first), ..., load(end - 1), joined in order.
template <class Load>
FC_DEVICE double join(NormKind kind, uint32_t first, uint32_t end, const Load& load) {
  constexpr uint32_t kInFlight = 16;  // loads, while the additions wait for each other
  double sum = 0;
  for (uint32_t i = first; i < end; i += kInFlight) {
    double parts[kInFlight];
    FC_UNROLL
    for (uint32_t k = 0; k < kInFlight; ++k) parts[k] = i + k < end ? load(i + k) : 0;
    FC_UNROLL
    for (uint32_t k = 0; k < kInFlight; ++k) sum = joined(kind, sum, parts[k]);
  }
  return sum;
}

/// The lane's sum over the elements of a chunk that are its own.
template <class T, NormKind kKind>
FC_DEVICE double sum_lane(const T* values, uint32_t lane, uint32_t count) {
  const uint32_t steps = (count + kNormLanes - 1 - lane) / kNormLanes;
  return join(kKind, 0, steps, [&](uint32_t step) {
    const double value = Numeric<T>::load(values[lane + step * kNormLanes]);
    return kKind == NormKind::kTwo ? mul_rn(value, value) : fabs(value);
  });
}

template <class T>
FC_DEVICE double sum_lane(NormKind kind, const T* values, uint32_t lane, uint32_t count) {
  switch (kind) {
    case NormKind::kOne:
      return sum_lane<T, NormKind::kOne>(values, lane, count);
    case NormKind::kTwo:
      return sum_lane<T, NormKind::kTwo>(values, lane, count);
    default:
      return sum_lane<T, NormKind::kInfinity>(values, lane, count);
  }
}

/// The table is indexed at run time, so it stays in parameter space: a copy would lie in local
/// memory.
template <class T, int N, int kWords>
__global__ void __launch_bounds__(kTableThreads)
    multi_gradient_kernel(const __grid_constant__ GradientTable<kWords> table) {
  constexpr uint64_t kElements = Shape<T, T, N>::kPackElements;
  // No more than a chunk has, and few enough that several thread blocks share a processor: while
  // one sums lanes, the others move data.
  constexpr int kPacks = Shape<T, T, N>::kPacks < 2 ? 1 : 2;
  FC_SHARED(uint4, packs, kNormBlock / kElements + 1);  // one more: a segment may begin within one
  FC_SHARED(double, lanes, kNormLanes);
  T* const values = reinterpret_cast<T*>(packs);
  int segment = 0;
  for (uint32_t chunk = first_chunk_of_block(); chunk < table.chunks; chunk += gridDim.x) {
    segment =
        segment_of_chunk([&](int i) { return table.first_chunk(i); }, table.count, segment, chunk);
    const SegmentWorker<T, T, N, GradientTable<kWords>> worker{table, segment * table.stride()};
    GradientHead head;
    memcpy(&head, &table.words[worker.at], sizeof(head));
    // Positions count from the pack that the segment begins in, elements from its begin.
    const uint64_t lead = head.lead;
    const uint32_t block = chunk - head.first_chunk;
    const uint64_t at = uint64_t{block} * kNormBlock;
    const uint64_t low = at + lead;
    const uint64_t high =
        low + kNormBlock < lead + head.count ? low + kNormBlock : lead + head.count;
    const PackRange range(low, high, kElements, head.packed != 0);
    bool finite = true;
    const Kept<T> keep{values, lead - at, finite};
    constexpr uint64_t kStep = uint64_t{kTableThreads} * kElements;
    const uint64_t end = range.pack_high - lead;
    for (uint64_t i = range.pack_low - lead; i < end; i += kPacks * kStep) {
      worker.template reduce<uint4, uint4, kElements, kPacks>(i + threadIdx.x * kElements, kStep, 0,
                                                              end, keep);
    }
    for (uint64_t i = threadIdx.x; i < range.singles(); i += kTableThreads) {
      worker.template reduce<T, T, 1, 1>(range.single(i) - lead, 0, 0, high - lead, keep);
    }
    // A barrier: all results are in shared memory.
    finite = all_agree(finite);
    if (table.norm != NormKind::kNone) {
      for (uint32_t lane = threadIdx.x; lane < kNormLanes; lane += kTableThreads) {
        lanes[lane] =
            sum_lane<T>(table.norm, values + lead, lane, static_cast<uint32_t>(high - low));
      }
      for (uint32_t width = 1; width < kNormLanes; width *= 2) {
        // All lanes of this width are there. Behind the first of these barriers nobody reads
        // results any more, so the next chunk may overwrite them.
        next_width();
        for (uint32_t lane = 2 * width * threadIdx.x; lane < kNormLanes;
             lane += 2 * width * kTableThreads) {
          lanes[lane] = joined(table.norm, lanes[lane], lanes[lane + width]);
        }
      }
    }
    if (threadIdx.x == 0) {  // who has joined the last two lanes
      table.notes.norms[head.first_block + block] = {table.norm != NormKind::kNone ? lanes[0] : 0,
                                                     finite};
      if (block == 0) table.notes.first_of[head.segment] = head.first_block;
    }
  }
}

/// One thread block; a thread joins the blocks of a segment. Without notes the parts are there.
__global__ void __launch_bounds__(kTableThreads)
    gradient_norm_kernel(NormNotes notes, uint32_t blocks, uint32_t segments, NormKind kind,
                         NormResults results) {
  bool finite = true;
  if (notes.norms != nullptr) {
    for (uint32_t s = threadIdx.x; s < segments; s += kTableThreads) {
      const uint32_t end = s + 1 < segments ? notes.first_of[s + 1] : blocks;
      results.parts[s] = join(kind, notes.first_of[s], end, [&](uint32_t i) {
        finite = finite && notes.norms[i].finite;
        return notes.norms[i].part;
      });
    }
  }
  finite = all_agree(finite);  // a barrier: all parts are there
  if (threadIdx.x != 0) return;
  const double sum = join(kind, 0, segments, [&](uint32_t i) { return results.parts[i]; });
  const double total = norm_of_sum(kind, sum);
  if (results.total_type == DType::kFloat64) {
    *static_cast<double*>(results.total) = total;
  } else {
    *static_cast<float*>(results.total) = static_cast<float>(total);
  }
  if (results.found_inf != nullptr) *results.found_inf = finite ? 0.0f : 1.0f;
}

template <int kWords>
using Kernel = void (*)(GradientTable<kWords>);

/// For the types that most gradients have; the others have one kernel for any number of sources.
template <class T, int kWords>
Kernel<kWords> kernel_for_sources(int num_sources) {
  switch (num_sources) {
#if !defined(FC_FEW_KERNELS)
    case 4:
      return multi_gradient_kernel<T, 4, kWords>;
    case 8:
      return multi_gradient_kernel<T, 8, kWords>;
#endif
    case 1:
      return multi_gradient_kernel<T, 1, kWords>;
    case 2:
      return multi_gradient_kernel<T, 2, kWords>;
    default:
      return multi_gradient_kernel<T, 0, kWords>;
  }
}

/// No kernel: nullptr.
template <int kWords>
Kernel<kWords> kernel_for(DType dtype, DType wire, int num_sources) {
  if (dtype == DType::kFloat32 && wire == DType::kBFloat16) {
    return multi_gradient_kernel<Through<BFloat16>, 0, kWords>;
  }
#if !defined(FC_FEW_KERNELS)
  if (dtype == DType::kFloat32 && wire == DType::kFloat16) {
    return multi_gradient_kernel<Through<Half>, 0, kWords>;
  }
#endif
  if (dtype != wire) return nullptr;
  switch (dtype) {
    case DType::kFloat32:
      return kernel_for_sources<float, kWords>(num_sources);
    case DType::kBFloat16:
      return kernel_for_sources<BFloat16, kWords>(num_sources);
#if !defined(FC_FEW_KERNELS)
    case DType::kFloat16:
      return kernel_for_sources<Half, kWords>(num_sources);
    case DType::kFloat64:
      return multi_gradient_kernel<double, 0, kWords>;
#endif
    default:
      return nullptr;
  }
}

/// At least one: an empty segment has a norm too.
uint64_t blocks_of(const GradientSegment& segment) {
  const uint64_t full = (segment.memory.count + kNormBlock - 1) / kNormBlock;
  return full == 0 ? 1 : full;
}

uint64_t blocks_of(const GradientSegment* segments, int count) {
  uint64_t blocks = 0;
  for (int i = 0; i < count; ++i) blocks += blocks_of(segments[i]);
  FC_CHECK(blocks < uint64_t{1} << 31, "a list of gradients of ", blocks, " blocks is too long");
  return blocks;
}

/// A segment of the list, and where in it.
struct Placed {
  const GradientSegment* segment;
  uint32_t index;
  uint32_t first_block;
};

/// Enqueues one kernel for as many of `placed`, which are of one kind, as the table holds; returns
/// how many it has taken.
template <int kWords>
size_t launch_table(const Placed* placed, size_t count, const GradientReduceSpec& spec,
                    const NormNotes& notes, cudaStream_t stream) {
  const DType dtype = placed[0].segment->dtype;
  const ReduceSpec plain{dtype,        dtype,     spec.num_sources, spec.num_destinations,
                         spec.divisor, spec.scale};
  GradientTable<kWords> table;
  table.begin(plain);
  table.notes = notes;
  table.norm = spec.norm;
  size_t taken = 0;
  for (; taken < count && !table.full(); ++taken) {
    const Placed& one = placed[taken];
    GradientHead head{};
    static_cast<SegmentHead&>(head) = head_of(one.segment->memory, plain);
    head.segment = one.index;
    head.first_block = one.first_block;
    table.add(head, one.segment->memory, plain, blocks_of(*one.segment));
  }
  const auto kernel = kernel_for<kWords>(dtype, placed[0].segment->wire, spec.num_sources);
  FC_CUDA(FC_LAUNCH(kernel, dim3(blocks_for_chunks(kernel, table.chunks)), dim3(kTableThreads),
                    stream, table),
          "multi_gradient of ", table.count, " segments");
  return taken;
}

void launch_kind(const std::vector<Placed>& placed, const GradientReduceSpec& spec,
                 const NormNotes& notes, cudaStream_t stream) {
  const int words = record_words<GradientHead>(spec.num_sources, spec.num_destinations);
  for (size_t done = 0; done < placed.size();) {
    const Placed* const next = placed.data() + done;
    const size_t rest = placed.size() - done;
    done += rest <= size_t(kSmallGradients / words)
                ? launch_table<kSmallGradients>(next, rest, spec, notes, stream)
            : rest <= size_t(kMediumTable / words)
                ? launch_table<kMediumTable>(next, rest, spec, notes, stream)
                : launch_table<kLargeGradients>(next, rest, spec, notes, stream);
  }
}

void launch_join(const NormNotes& notes, uint32_t blocks, int count, NormKind kind,
                 const NormResults& results, cudaStream_t stream) {
  FC_CUDA(FC_LAUNCH(gradient_norm_kernel, dim3(1), dim3(kTableThreads), stream, notes, blocks,
                    static_cast<uint32_t>(count), kind, results),
          "the norm of ", count, " gradients");
}

void check_spec(const GradientReduceSpec& spec) {
  FC_CHECK(spec.num_sources >= 1 && spec.num_sources <= kMaxReduceSources,
           "multi_gradient: ", spec.num_sources, " sources, 1 to ", kMaxReduceSources,
           " are possible");
  FC_CHECK(spec.num_destinations == 1 || (spec.num_destinations == 0 && spec.num_sources == 1),
           "multi_gradient: ", spec.num_destinations, " destinations of ", spec.num_sources,
           " sources");
  FC_CHECK(spec.divisor >= 1, "multi_gradient: divisor ", spec.divisor);
}

}  // namespace

uint64_t gradient_scratch_bytes(const GradientSegment* segments, int count) {
  return blocks_of(segments, count) * sizeof(BlockNorm) + count * sizeof(uint32_t);
}

void launch_multi_gradient(const GradientSegment* segments, int count,
                           const GradientReduceSpec& spec, void* scratch,
                           const NormResults& results, cudaStream_t stream) {
  FC_CHECK(count >= 0, "multi_gradient: ", count, " segments");
  check_spec(spec);
  const auto blocks = static_cast<uint32_t>(blocks_of(segments, count));
  NormNotes notes{static_cast<BlockNorm*>(scratch), nullptr};
  notes.first_of = reinterpret_cast<uint32_t*>(notes.norms + blocks);
  std::vector<std::vector<Placed>> kinds;  // of one pair of types each
  uint32_t first_block = 0;
  for (int i = 0; i < count; ++i) {
    const GradientSegment& segment = segments[i];
    if (kernel_for<kSmallGradients>(segment.dtype, segment.wire, spec.num_sources) == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  concat("multi_gradient: no CUDA kernel for ", dtype_name(segment.dtype), " by ",
                         dtype_name(segment.wire)));
    }
    const auto same = [&](const std::vector<Placed>& kind) {
      return kind[0].segment->dtype == segment.dtype && kind[0].segment->wire == segment.wire;
    };
    auto kind = std::find_if(kinds.begin(), kinds.end(), same);
    if (kind == kinds.end()) kind = kinds.insert(kind, std::vector<Placed>());
    kind->push_back({&segment, static_cast<uint32_t>(i), first_block});
    first_block += static_cast<uint32_t>(blocks_of(segment));
  }
  for (const std::vector<Placed>& kind : kinds) launch_kind(kind, spec, notes, stream);
  launch_join(notes, blocks, count, spec.norm, results, stream);
}

void launch_norm_of_parts(const double* parts, int count, NormKind kind, double* total,
                          cudaStream_t stream) {
  const NormResults results{const_cast<double*>(parts), total, DType::kFloat64, nullptr};
  launch_join({nullptr, nullptr}, 0, count, kind, results, stream);
}

}  // namespace fastcomm
