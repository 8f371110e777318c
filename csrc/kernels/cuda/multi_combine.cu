// The kernels of kernels/cuda/multi_combine.h: one per type, which takes its reduction and the
// number of sources at run time.
//
// There are many reductions, seldom called, and all are bound by the speed of memory, so they share
// kernels; sums have one for each number of sources (kernels/cuda/multi_reduce.cu). Types whose
// sign does not matter go to the unsigned type's kernel. A chunk is one pack per thread of a block
// (kernels/cuda/combine_pack.h). If the sources of a segment share an alignment, it is reduced in
// packs; a destination with another alignment gets them element by element. Otherwise all of it
// goes element by element. Cost: one launch; n sources read once, every destination written once; 4
// KB of parameters.
//
// Memory ordering: none (kernels/cuda/chunks.h). A thread reads a position of every source before
// it writes it, and no other thread writes it, so a destination may be a source. Nothing outside of
// the segment is read. Also compiled for the host, under the execution shim (FC_SHIM).
#include "kernels/cuda/multi_combine.h"

#include "core/error.h"
#include "kernels/cuda/combine_chunks.h"
#include "kernels/cuda/kernel_types.h"
#include "kernels/cuda/reduce_table.h"
#include "kernels/reduce_cpu.h"

namespace fastcomm {
namespace {

struct CombineTable : ReduceTable<kSmallTable> {
  CombineTerms combination;
};
static_assert(sizeof(CombineTable) <= kMaxParameterBytes, "parameters");

/// The table is indexed at run time, so it stays in parameter space: a copy would lie in local
/// memory.
template <class T>
__global__ void __launch_bounds__(kTableThreads)
    multi_combine_kernel(const __grid_constant__ CombineTable table) {
  combine_chunks<T>(table.view(), table.combination);
}

using Choice = ReduceKernel<CombineTable>;

/// The answer holds nullptr if there is no kernel.
Choice kernel_for(DType dtype) {
  return for_combined_type<Choice>(dtype, [](auto tag) {
    using T = typename decltype(tag)::Type;
    return Choice{multi_combine_kernel<T>, kCombineChunk<T>};
  });
}

/// Enqueues one kernel for as many segments as the table holds; returns their number.
int launch_table(const ReduceSegment* segments, int count, const CombineSpec& spec,
                 cudaStream_t stream, const ChannelState* channel) {
  const Choice choice = kernel_for(as_kernels_know(spec).dtype);
  const ReduceSpec sizes = sizes_of(spec);
  CombineTable table;
  table.begin(sizes);
  table.combination = terms_of(spec);
  const int taken = table.take(segments, count, sizes, choice.chunk, head_of_sources);
  if (table.count == 0) return taken;
  table.channel = view_of_channel(channel);
  FC_CUDA(FC_LAUNCH(choice.kernel, dim3(blocks_for_chunks(choice.kernel, table.chunks)),
                    dim3(kTableThreads), stream, table),
          "multi_combine of ", table.count, " segments");
  return taken;
}

}  // namespace

void check_multi_combine(const CombineSpec& spec) {
  check_ends("multi_combine", spec.num_sources, "sources");
  check_ends("multi_combine", spec.num_destinations, "destinations");
  const char* reason = why_no_reduction(spec.dtype, spec.op);
  if (reason == nullptr && is_of_multi_reduce(spec.dtype, spec.op)) reason = "use multi_reduce";
  if (reason == nullptr && kernel_for(as_kernels_know(spec).dtype).kernel == nullptr) {
    reason = "this build lacks it";
  }
  if (reason == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              concat("multi_combine: no CUDA kernel for ", reduce_op_name(spec.op), " of ",
                     dtype_name(spec.dtype), ": ", reason));
}

void load_multi_combine() {
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    load_kernel(kernel_for(static_cast<DType>(dtype)).kernel);
  }
}

void launch_multi_combine(const ReduceSegment* segments, int count, const CombineSpec& spec,
                          cudaStream_t stream, const ChannelState* channel) {
  FC_CHECK(count >= 0, "multi_combine: ", count, " segments");
  check_multi_combine(spec);
  for (int done = 0; done < count;) {
    done += launch_table(segments + done, count - done, spec, stream, channel);
  }
}

}  // namespace fastcomm
