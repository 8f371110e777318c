// The kernels of engines/cuda/short.h for reductions other than sums: one per type, like
// kernels/cuda/multi_combine.cu. Also compiled for the host, under the execution shim (FC_SHIM).
#include "engines/cuda/short_block.h"
#include "kernels/cuda/kernel_types.h"

namespace fastcomm {

ShortKernel short_combination_for(DType dtype) {
  return for_combined_type<ShortKernel>(dtype, [](auto tag) {
    using T = typename decltype(tag)::Type;
    return ShortKernel{short_kernel<ShortCombinations<T>>, kCombineChunk<T>};
  });
}

}  // namespace fastcomm
