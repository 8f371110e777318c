// The kernels of kernels/cuda/multi_gradient.h, and the one place that chooses among them.
//
//   multi_gradient_kernel  reduces, and computes the norms of what it writes
//   multi_norm_kernel      computes norms alone, of sources that nothing changes
//
// A chunk is a block of kNormBlock elements. multi_gradient_kernel reduces it in packs
// (kernels/cuda/reduce_table.h), leaving each result in shared memory too. Then every thread sums a
// column of the norm (kernels/cuda/norm_columns.h), a few join the columns
// (kernels/cuda/norm_tree.h), and thread 0 ends that while the others go on to the next chunk.
// multi_norm_kernel takes columns from where the source lies, and loads those of the next chunk
// before it joins those of this one. Cost: n sources read once, the destination written once, 16
// bytes of norm per block; 10 or 32 KB of parameters. A tensor without elements has one empty
// block, so that it has a norm.
//
// Memory ordering. Within a thread block, barriers: results are in shared memory before a column is
// summed; a column is summed before it is joined, and before the next chunk's results replace its
// elements. multi_norm_kernel shares nothing but leaves, which NormTree orders. Nothing orders
// thread blocks, and no two write the same memory; the kernels that join norms come later in the
// stream.
#include "kernels/cuda/multi_gradient.h"

#include <algorithm>
#include <vector>

#include "core/control.h"
#include "core/error.h"
#include "core/numeric.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/kernel_types.h"
#include "kernels/cuda/norm_columns.h"
#include "kernels/cuda/norm_tree.h"
#include "kernels/cuda/reduce_table.h"

namespace fastcomm {
namespace {

struct GradientHead : SegmentHead {
  uint32_t segment;      // of the list
  uint32_t first_block;  // of the list
};

template <int kWords>
struct GradientTable : ReduceTable<kWords, GradientHead> {
  NormNotes notes;
  NormKind norm;
};

// Two sizes, as each costs the compilation of every kernel. The reduction's smallest size would
// make a launch little cheaper, since the norm needs two more kernels.
constexpr int kFewGradients = kMediumTable;
constexpr int kLargeGradients = kLargeTable - 4;  // room for the rest of the table
static_assert(sizeof(GradientTable<kLargeGradients>) <= kMaxParameterBytes, "parameters");

/// Results of a chunk in shared memory, at their positions in it.
template <class T>
struct Kept {
  T* values;
  uint64_t first;  // position less element
  bool checked;    // whether `finite` has to be told
  bool& finite;

  template <class Raw>
  FC_DEVICE void operator()(uint64_t element, const Raw (&raw)[1]) const {
    constexpr int kCount = kLanes<T, Raw>;
    reinterpret_cast<Raw*>(values)[(element + first) / kCount] = raw[0];
    if (!checked) return;
    T results[kCount];
    memcpy(results, raw, sizeof(results));
    FC_UNROLL
    for (int e = 0; e < kCount; ++e) {
      const auto value = Numeric<T>::load(results[e]);
      finite &= value - value == 0;
    }
  }
};

/// Notes a chunk's norm, by thread 0.
FC_DEVICE void note_chunk(const NormNotes& notes, const GradientHead& head, uint32_t block,
                          BlockNorm norm) {
  if (threadIdx.x != 0) return;
  notes.blocks[head.first_block + block] = norm;
  if (block == 0) notes.first_of[head.segment] = head.first_block;
}

/// A thread block's chunks.
template <class T, int N>
FC_DEVICE void reduce_chunks(const TableView<GradientHead>& table, const NormNotes& notes,
                             NormKind norm) {
  constexpr uint64_t kElements = Shape<T, T, N>::kPackElements;
  // At most a thread's share of a chunk.
  constexpr uint64_t kOfChunk = kNormBlock / kElements / kTableThreads;
  constexpr int kPacks =
      kOfChunk < Shape<T, T, N>::kPacks ? static_cast<int>(kOfChunk) : Shape<T, T, N>::kPacks;
  FC_SHARED(uint4, packs, kNormBlock / kElements + 1);  // one more: a segment may start within one
  FC_SHARED(double, leaves, NormTree::kPlaces);
  const NormTree tree(leaves);
  T* const values = reinterpret_cast<T*>(packs);
  const bool tells = part_tells<T>(norm);
  each_chunk<T, T, N>(table, [&](const auto& worker, const GradientHead& head, uint32_t block) {
    // Positions count from the pack in which the segment starts, elements from the segment's start.
    const uint64_t lead = head.lead;
    const uint64_t at = uint64_t{block} * kNormBlock;
    const uint64_t low = at + lead;
    const uint64_t high =
        low + kNormBlock < lead + head.count ? low + kNormBlock : lead + head.count;
    const auto count = static_cast<uint32_t>(high - low);
    const PackRange range(low, high, kElements, head.packed != 0);
    bool finite = true;
    const Kept<T> keep{values, lead - at, !tells, finite};
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
    double part = 0;
    if (norm != NormKind::kNone) {
      NormColumns<T> columns;
      columns.load(values + lead, count);
      columns.sum(norm, tree);
      part = tree.root(norm);
    }
    note_chunk(notes, head, block, {part, tells ? part - part == 0 : finite});
  });
}

/// A chunk of a source.
template <class T>
struct NormChunk {
  GradientHead head;
  uint32_t block;  // of the segment
  const T* values;
  uint32_t count;

  FC_DEVICE NormChunk(const TableView<GradientHead>& table, const ChunkWalk<GradientHead>& walk) {
    const SegmentWorker<T, T, 1, GradientHead> worker{table, walk.at()};
    head = walk.head();
    block = walk.chunk() - head.first_chunk;
    const uint64_t at = uint64_t{block} * kNormBlock;
    values = reinterpret_cast<const T*>(worker.source(0)) + at;
    const uint64_t rest = head.count - at;
    count = static_cast<uint32_t>(rest < kNormBlock ? rest : kNormBlock);
  }
};

/// The norms of a thread block's chunks. The next chunk is found while columns are loaded, and its
/// own are loaded while those before are joined.
template <class T>
FC_DEVICE void norm_chunks(const TableView<GradientHead>& table, const NormNotes& notes,
                           NormKind norm) {
  FC_SHARED(double, leaves, NormTree::kPlaces);
  const NormTree tree(leaves);
  ChunkWalk<GradientHead> walk(table);
  if (walk.ended()) return;
  NormChunk<T> chunk(table, walk);
  NormColumns<T> columns;
  columns.load(chunk.values, chunk.count);
  for (bool last = false; !last;) {
    walk.next();
    last = walk.ended();
    const NormChunk<T> next = last ? chunk : NormChunk<T>(table, walk);
    columns.sum(norm, tree);
    if (!last) columns.load(next.values, next.count);
    const double part = tree.root(norm);
    note_chunk(notes, chunk.head, chunk.block, {part, part - part == 0});
    chunk = next;
  }
}

/// The table is indexed at run time, so it stays in parameter space: a copy would lie in local
/// memory.
template <class T, int N, int kWords>
__global__ void __launch_bounds__(kTableThreads)
    multi_gradient_kernel(const __grid_constant__ GradientTable<kWords> table) {
  reduce_chunks<T, N>(table.view(), table.notes, table.norm);
}

template <class T, int kWords>
__global__ void __launch_bounds__(kTableThreads)
    multi_norm_kernel(const __grid_constant__ GradientTable<kWords> table) {
  norm_chunks<T>(table.view(), table.notes, table.norm);
}

template <int kWords>
using Kernel = void (*)(GradientTable<kWords>);

/// For the types of most gradients; fp64 has one kernel for any number of sources.
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

/// True if the norm of an unchanged source is all that is wanted. No caller asks for a norm of a
/// source that a wire changes without asking for the sum.
bool is_norm_alone(const GradientReduceSpec& spec) {
  return spec.num_destinations == 0 && spec.divisor == 1 && spec.scale == 1 &&
         spec.norm != NormKind::kNone;
}

/// nullptr: no kernel.
template <int kWords>
Kernel<kWords> kernel_for(DType dtype, DType wire, const GradientReduceSpec& spec) {
  if (dtype == DType::kFloat32 && wire == DType::kBFloat16) {
    return kernel_for_sources<Through<BFloat16>, kWords>(spec.num_sources);
  }
#if !defined(FC_FEW_KERNELS)
  if (dtype == DType::kFloat32 && wire == DType::kFloat16) {
    return kernel_for_sources<Through<Half>, kWords>(spec.num_sources);
  }
#endif
  if (dtype != wire) return nullptr;
  return for_sum_type<Kernel<kWords>>(dtype, [&](auto tag) -> Kernel<kWords> {
    using T = typename decltype(tag)::Type;
    if constexpr (is_short_float<T>) {
      return is_norm_alone(spec) ? multi_norm_kernel<T, kWords>
                                 : kernel_for_sources<T, kWords>(spec.num_sources);
    }
    if constexpr (std::is_same<T, double>::value) return multi_gradient_kernel<T, 0, kWords>;
    return nullptr;
  });
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

/// The sizes of all notes; a launch writes those of its segments.
struct NoteSizes {
  uint64_t blocks, segments;
};

/// A segment of the list, and a place in it.
struct ListedSegment {
  const GradientSegment* segment;
  uint32_t index;
  uint32_t first_block;
};

/// Enqueues one kernel for as many of `listed`, which are of one kind, as the table holds; returns
/// their number.
template <int kWords>
size_t launch_table(const ListedSegment* listed, size_t count, const GradientReduceSpec& spec,
                    const NormNotes& notes, const NoteSizes& sizes, cudaStream_t stream) {
  const DType dtype = listed[0].segment->dtype;
  const ReduceSpec plain{dtype,        dtype,     spec.num_sources, spec.num_destinations,
                         spec.divisor, spec.scale};
  GradientTable<kWords> table;
  table.begin(plain);
  table.notes.blocks = kernel_view(notes.blocks, sizes.blocks * sizeof(BlockNorm), Touch::kWrite);
  table.notes.first_of =
      kernel_view(notes.first_of, sizes.segments * sizeof(uint32_t), Touch::kWrite);
  table.norm = spec.norm;
  size_t taken = 0;
  for (; taken < count && !table.full(); ++taken) {
    const ListedSegment& one = listed[taken];
    GradientHead head{};
    static_cast<SegmentHead&>(head) = head_of(one.segment->memory, plain);
    head.segment = one.index;
    head.first_block = one.first_block;
    table.add(head, one.segment->memory, plain, blocks_of(*one.segment));
  }
  const auto kernel = kernel_for<kWords>(dtype, listed[0].segment->wire, spec);
  FC_CUDA(FC_LAUNCH(kernel, dim3(blocks_for_chunks(kernel, table.chunks)), dim3(kTableThreads),
                    stream, table),
          "multi_gradient of ", table.count, " segments");
  return taken;
}

void launch_kind(const std::vector<ListedSegment>& listed, const GradientReduceSpec& spec,
                 const NormNotes& notes, const NoteSizes& sizes, cudaStream_t stream) {
  const int words = record_words<GradientHead>(spec.num_sources, spec.num_destinations);
  for (size_t done = 0; done < listed.size();) {
    const ListedSegment* const next = listed.data() + done;
    const size_t rest = listed.size() - done;
    done += rest <= size_t(kFewGradients / words)
                ? launch_table<kFewGradients>(next, rest, spec, notes, sizes, stream)
                : launch_table<kLargeGradients>(next, rest, spec, notes, sizes, stream);
  }
}

void check_spec(const GradientReduceSpec& spec) {
  check_ends("multi_gradient", spec.num_sources, "sources");
  FC_CHECK(spec.num_destinations == 1 || (spec.num_destinations == 0 && spec.num_sources == 1),
           "multi_gradient: ", spec.num_destinations, " destinations of ", spec.num_sources,
           " sources");
  FC_CHECK(spec.divisor >= 1, "multi_gradient: divisor ", spec.divisor);
}

}  // namespace

uint64_t gradient_scratch_bytes(const GradientSegment* segments, int count) {
  return norm_notes_bytes(blocks_of(segments, count), count);
}

void load_gradients_of_one() {
  GradientReduceSpec spec{};
  spec.num_sources = 1;
  spec.norm = NormKind::kTwo;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    const auto type = static_cast<DType>(dtype);
    for (spec.num_destinations = 0; spec.num_destinations <= 1; ++spec.num_destinations) {
      load_kernel(kernel_for<kFewGradients>(type, type, spec));
      load_kernel(kernel_for<kLargeGradients>(type, type, spec));
    }
  }
  load_gradient_norm();
}

void launch_multi_gradient(const GradientSegment* segments, int count,
                           const GradientReduceSpec& spec, void* scratch,
                           const NormResults& results, cudaStream_t stream) {
  FC_CHECK(count >= 0, "multi_gradient: ", count, " segments");
  check_spec(spec);
  const auto blocks = static_cast<uint32_t>(blocks_of(segments, count));
  const NormNotes notes = norm_notes_at(scratch, blocks, count);
  const NoteSizes sizes{blocks, static_cast<uint32_t>(count)};
  std::vector<std::vector<ListedSegment>> kinds;  // of one pair of types each
  uint32_t first_block = 0;
  for (int i = 0; i < count; ++i) {
    const GradientSegment& segment = segments[i];
    if (kernel_for<kFewGradients>(segment.dtype, segment.wire, spec) == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  concat("multi_gradient: no CUDA kernel for ", dtype_name(segment.dtype), " by ",
                         dtype_name(segment.wire)));
    }
    const auto same = [&](const std::vector<ListedSegment>& kind) {
      return kind[0].segment->dtype == segment.dtype && kind[0].segment->wire == segment.wire;
    };
    auto kind = std::find_if(kinds.begin(), kinds.end(), same);
    if (kind == kinds.end()) kind = kinds.insert(kind, std::vector<ListedSegment>());
    kind->push_back({&segment, static_cast<uint32_t>(i), first_block});
    first_block += static_cast<uint32_t>(blocks_of(segment));
  }
  for (const std::vector<ListedSegment>& kind : kinds)
    launch_kind(kind, spec, notes, sizes, stream);
  launch_gradient_norm(notes, blocks, count, spec.norm, results, stream);
}

}  // namespace fastcomm
