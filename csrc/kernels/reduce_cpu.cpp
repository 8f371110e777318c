#include "kernels/reduce_cpu.h"

#include "core/error.h"
#include "kernels/isa.h"

namespace fastcomm {

FC_DECLARE_FOR_EVERY_ISA(ReduceFunction sum_function(DType dtype))
FC_DECLARE_FOR_EVERY_ISA(ReduceFunction plain_function(DType dtype, ReduceOp op))

const char* why_no_reduction(DType dtype, ReduceOp op) {
  if (dtype == DType::kOther) return "convert the tensor";
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kProduct:
      return nullptr;
    case ReduceOp::kAvg:
      return dtype == DType::kBool ? "use sum or max" : nullptr;
    case ReduceOp::kPremulSum:
      return is_floating(dtype) ? nullptr : "floats only: multiply before and use sum";
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return is_floating(dtype) ? "bits of integers only" : nullptr;
    default:
      return "no reduction that is known here";
  }
}

ReduceFunction reduce_function(DType dtype, ReduceOp op) {
  if (const char* reason = why_no_reduction(dtype, op)) {
    throw Error(ErrorCode::kUnsupported, concat("no reduction ", reduce_op_name(op), " of dtype ",
                                                dtype_name(dtype), ": ", reason));
  }
  const bool sum = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  return sum ? FC_OF_CHOSEN_ISA(sum_function)(dtype) : FC_OF_CHOSEN_ISA(plain_function)(dtype, op);
}

}  // namespace fastcomm
