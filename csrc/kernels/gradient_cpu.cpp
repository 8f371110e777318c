#include "kernels/gradient_cpu.h"

#include <cstring>

#include "core/error.h"
#include "kernels/isa.h"

namespace fastcomm {
namespace {

template <size_t kElementSize>
void copy(void* to, const void* from, size_t count) {
  if (to != from && count != 0) std::memcpy(to, from, count * kElementSize);
}

}  // namespace

FC_DECLARE_FOR_EVERY_ISA(NormFunction norm_function(DType dtype, NormKind kind))
FC_DECLARE_FOR_EVERY_ISA(BlockNorm block_norm(NormLanes& lanes, NormKind kind))
FC_DECLARE_FOR_EVERY_ISA(ConvertFunction convert_function(DType to, DType from))
FC_DECLARE_FOR_EVERY_ISA(FeedbackFunction feedback_function(DType to))

NormFunction norm_function(DType dtype, NormKind kind) {
  const NormFunction function = FC_OF_CHOSEN_ISA(norm_function)(dtype, kind);
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat("no norm of dtype ", dtype_name(dtype)));
  }
  return function;
}

BlockNorm block_norm(NormLanes& lanes, NormKind kind) {
  return FC_OF_CHOSEN_ISA(block_norm)(lanes, kind);
}

FeedbackFunction feedback_function(DType to) {
  const FeedbackFunction function = FC_OF_CHOSEN_ISA(feedback_function)(to);
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat("no error feedback for ", dtype_name(to)));
  }
  return function;
}

ConvertFunction convert_function(DType to, DType from) {
  if (to == from) {
    switch (dtype_size(to)) {
      case 8:
        return copy<8>;
      case 4:
        return copy<4>;
      case 2:
        return copy<2>;
      default:
        return copy<1>;
    }
  }
  const ConvertFunction function = FC_OF_CHOSEN_ISA(convert_function)(to, from);
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                concat("no conversion from ", dtype_name(from), " to ", dtype_name(to)));
  }
  return function;
}

}  // namespace fastcomm
