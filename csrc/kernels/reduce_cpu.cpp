#include "kernels/reduce_cpu.h"

#include "core/error.h"
#include "kernels/isa.h"

namespace fastcomm {

FC_DECLARE_FOR_EVERY_ISA(ReduceFunction sum_function(DType dtype))

ReduceFunction reduce_function(DType dtype) {
  const ReduceFunction function = FC_OF_CHOSEN_ISA(sum_function)(dtype);
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat("no reduction for dtype ", dtype_name(dtype)));
  }
  return function;
}

}  // namespace fastcomm
