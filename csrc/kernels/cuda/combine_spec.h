// Parameters of a batched combination (kernels/cuda/multi_combine.h), and the name by which kernels
// know it.
#pragma once

#include <type_traits>

#include "core/types.h"
#include "core/visit_types.h"
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

/// The unsigned type of the same size, for a signed one.
inline DType unsigned_of(DType dtype) {
  if (dtype == DType::kOther) return dtype;
  return for_type<DType>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (std::is_integral<T>::value) {
      return dtype_for<typename std::make_unsigned<T>::type>();
    } else {
      return dtype;
    }
  });
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
