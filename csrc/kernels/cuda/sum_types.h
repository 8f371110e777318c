// The types that kernels sum up (has_cuda_kernel in core/types.h), to make a kernel of each.
#pragma once

#include "core/numeric.h"
#include "core/types.h"

namespace fastcomm {

template <class T>
struct TypeTag {
  using Type = T;
};

/// What `make(TypeTag<T>())` gives for the type with that name; Made() if sums of it have no kernel.
template <class Made, class Make>
Made for_sum_type(DType dtype, const Make& make) {
  switch (dtype) {
    case DType::kFloat32:
      return make(TypeTag<float>());
    case DType::kBFloat16:
      return make(TypeTag<BFloat16>());
#if !defined(FC_FEW_KERNELS)
    case DType::kFloat16:
      return make(TypeTag<Half>());
    case DType::kFloat64:
      return make(TypeTag<double>());
    case DType::kInt8:
      return make(TypeTag<int8_t>());
    case DType::kUInt8:
      return make(TypeTag<uint8_t>());
    case DType::kInt16:
      return make(TypeTag<int16_t>());
    case DType::kInt32:
      return make(TypeTag<int32_t>());
    case DType::kInt64:
      return make(TypeTag<int64_t>());
    case DType::kBool:
      return make(TypeTag<Bool>());
#endif
    default:
      return Made();
  }
}

}  // namespace fastcomm
