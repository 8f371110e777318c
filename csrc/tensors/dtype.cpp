#include "tensors/dtype.h"

namespace fastcomm {

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kChar:
      return DType::kInt8;
    case at::kByte:
      return DType::kUInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kBool:
      return DType::kBool;
    case at::kUInt16:
      return DType::kUInt16;
    case at::kUInt32:
      return DType::kUInt32;
    case at::kUInt64:
      return DType::kUInt64;
    default:
      return DType::kOther;
  }
}

}  // namespace fastcomm
