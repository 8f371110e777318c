// The kernels of engines/cuda/short.h for reductions that are no sums: one a type, as
// kernels/cuda/multi_combine.cu. Also compiled for the host, under the execution shim (FC_SHIM).
#include "engines/cuda/short_block.h"

namespace fastcomm {
namespace {

template <class T>
ShortKernel combination_of() {
  return {short_kernel<ShortCombinations<T>>, kCombineChunk<T>};
}

}  // namespace

ShortKernel short_combination_for(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return combination_of<float>();
    case DType::kInt8:
      return combination_of<int8_t>();
#if !defined(FC_FEW_KERNELS)
    case DType::kUInt8:
      return combination_of<uint8_t>();
    case DType::kBFloat16:
      return combination_of<BFloat16>();
    case DType::kFloat64:
      return combination_of<double>();
    case DType::kFloat16:
      return combination_of<Half>();
    case DType::kInt16:
      return combination_of<int16_t>();
    case DType::kInt32:
      return combination_of<int32_t>();
    case DType::kInt64:
      return combination_of<int64_t>();
    case DType::kUInt16:
      return combination_of<uint16_t>();
    case DType::kUInt32:
      return combination_of<uint32_t>();
    case DType::kUInt64:
      return combination_of<uint64_t>();
    case DType::kBool:
      return combination_of<Bool>();
#endif
    default:
      return {};
  }
}

}  // namespace fastcomm
