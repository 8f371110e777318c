// The kernels of kernels/cuda/indirect_reduce.h: those of kernels/cuda/multi_reduce.cu with another
// source of their table. Each block puts it together in its shared memory, and from then on uses it
// like one in parameters.
//
// Cost: that of multi_reduce, plus one dependent load and one barrier per block; 100 bytes of
// parameters.
//
// Memory ordering: an earlier kernel of the stream writes the addresses; a block's barrier is
// between its threads' stores to the table and their loads. The memory at the addresses: as in
// multi_reduce. Also compiled for the host, under the execution shim (FC_SHIM).
#include "kernels/cuda/indirect_reduce.h"

#include "core/error.h"
#include "core/touches.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/kernel_types.h"
#include "kernels/cuda/reduce_chunks.h"
#include "kernels/cuda/reduce_table.h"

namespace fastcomm {
namespace {

constexpr int kHeadWords = record_words<SegmentHead>(0, 0);
constexpr int kMostWords = record_words<SegmentHead>(kMaxReduceSources, kMaxReduceSources);

struct IndirectTerms : ReduceTerms {
  uint64_t head[kHeadWords];
  const uint64_t* addresses;
};

template <class T, int N>
__global__ void __launch_bounds__(kTableThreads)
    indirect_reduce_kernel(const __grid_constant__ IndirectTerms terms) {
  FC_SHARED(uint64_t, words, kMostWords);
  const int many = record_words<SegmentHead>(terms.num_sources, terms.num_destinations);
  for (int i = static_cast<int>(threadIdx.x); i < many; i += static_cast<int>(blockDim.x)) {
    words[i] = i < kHeadWords ? terms.head[i] : terms.addresses[i - kHeadWords];
  }
  __syncthreads();
  const TableView<SegmentHead> table{terms, words};
  if (blockIdx.x == 0 && !has_failed(terms.channel)) {  // for all of the grid
    const SegmentWorker<T, T, N, SegmentHead> worker{table, 0};
    SegmentHead head;
    memcpy(&head, words, sizeof(head));
    for (int j = 0; j < terms.num_sources; ++j) {
      FC_TOUCHES(worker.source(j), head.count * sizeof(T), false);
    }
    for (int d = 0; d < terms.num_destinations; ++d) {
      FC_TOUCHES(worker.destination(d), head.count * sizeof(T), true);
    }
  }
  reduce_chunks<T, T, N>(table);
}

using Choice = ReduceKernel<IndirectTerms>;

template <class T, int N>
Choice kernel_of() {
  return {indirect_reduce_kernel<T, N>, InFlight<T, T, N>::kChunk};
}

/// One kernel per width of the tree for the types of gradients; else one for any width.
template <class T>
Choice kernel_for_sources([[maybe_unused]] int num_sources) {
#if !defined(FC_FEW_KERNELS)
  if constexpr (is_short_float<T>) {
    switch (tree_width(num_sources)) {
      case 2:
        return kernel_of<T, 2>();
      case 4:
        return kernel_of<T, 4>();
      case 8:
        return kernel_of<T, 8>();
      case 16:
        return kernel_of<T, 16>();
      default:
        break;
    }
  }
#endif
  return kernel_of<T, 0>();
}

/// The answer holds nullptr if there is no kernel.
Choice kernel_for(DType dtype, int num_sources) {
  return for_sum_type<Choice>(dtype, [&](auto tag) {
    return kernel_for_sources<typename decltype(tag)::Type>(num_sources);
  });
}

}  // namespace

void load_indirect_reduce(int num_sources) {
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    load_kernel(kernel_for(static_cast<DType>(dtype), num_sources).kernel);
  }
}

void launch_indirect_reduce(const ReduceSegment& like, const uint64_t* addresses,
                            const ReduceSpec& spec, cudaStream_t stream,
                            const ChannelState* channel) {
  check_multi_reduce(spec);
  FC_CHECK(spec.in == spec.out, "indirect_reduce: from ", dtype_name(spec.in), " to ",
           dtype_name(spec.out));
  if (like.count == 0) return;
  const Choice choice = kernel_for(spec.in, spec.num_sources);
  IndirectTerms args;
  args.begin(spec);
  SegmentHead head = head_with_shifts(like, spec);
  head.first_chunk = 0;
  const uint64_t chunks = chunks_of(head, choice.chunk);
  FC_CHECK(chunks < uint64_t{1} << 31, "a reduction of more elements than one launch can count");
  memcpy(args.head, &head, sizeof(head));
  args.count = 1;
  args.chunks = static_cast<uint32_t>(chunks);
  const int ends = spec.num_sources + spec.num_destinations;
  args.addresses = kernel_view(addresses, ends * sizeof(uint64_t), Touch::kRead);
  args.channel = view_of_channel(channel);
  FC_CUDA(FC_LAUNCH(choice.kernel, dim3(blocks_for_chunks(choice.kernel, chunks)),
                    dim3(kTableThreads), stream, args),
          "indirect_reduce of ", like.count, " elements");
}

}  // namespace fastcomm
