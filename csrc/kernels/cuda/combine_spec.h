// Parameters of a batched combination (kernels/cuda/multi_combine.h), and the name by which kernels
// know it.
#pragma once

#include "core/types.h"
#include "kernels/cuda/reduce_spec.h"

namespace fastcomm {

struct CombineSpec {
  DType dtype;
  ReduceOp op;
  int num_sources;       // 1 to kMaxReduceSources; AVG divides by it
  int num_destinations;  // 1 to kMaxReduceSources
  double factor = 1;     // of PREMUL_SUM: multiplies every source, as the accumulator's type
};

/// True if multi_reduce has this reduction; why_no_reduction explains those that neither has.
constexpr bool is_of_multi_reduce(DType dtype, ReduceOp op) {
  return has_cuda_kernel(dtype) && (op == ReduceOp::kSum || op == ReduceOp::kAvg);
}

inline DType unsigned_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return DType::kUInt8;
    case DType::kInt16:
      return DType::kUInt16;
    case DType::kInt32:
      return DType::kUInt32;
    case DType::kInt64:
      return DType::kUInt64;
    default:
      return dtype;
  }
}

/// The same reduction, under the one name that kernels know: the unsigned type's if the sign does
/// not matter; AVG as a SUM with a divisor.
inline CombineSpec as_kernels_know(CombineSpec spec) {
  const bool extreme = spec.op == ReduceOp::kMin || spec.op == ReduceOp::kMax;
  if (!extreme) spec.dtype = unsigned_of(spec.dtype);
  if (spec.dtype == DType::kBool) {  // kernels/reduce_cpu.h
    if (spec.op == ReduceOp::kMin || spec.op == ReduceOp::kProduct) spec.op = ReduceOp::kBand;
    if (spec.op == ReduceOp::kMax) spec.op = ReduceOp::kBor;
  }
  if (spec.op == ReduceOp::kAvg) spec.op = ReduceOp::kSum;
  return spec;
}

/// Choice among the combinations of a kernel's type, passed beside the table.
struct CombineTerms {
  ReduceOp op;
  double factor;  // of PREMUL_SUM
};

inline CombineTerms terms_of(const CombineSpec& spec) {
  return {as_kernels_know(spec).op, spec.factor};
}

/// Sizes for making a table of the combination.
inline ReduceSpec sizes_of(const CombineSpec& spec) {
  return {spec.dtype, spec.dtype, spec.num_sources, spec.num_destinations,
          spec.op == ReduceOp::kAvg ? spec.num_sources : 1};
}

}  // namespace fastcomm
