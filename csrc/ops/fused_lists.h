// Lists of gradients of one process's replicas, reduced in one pass: what a fused all_reduce computes,
// with the same bits, without ranks.
#pragma once

#include <vector>

#include "tensors/gradients.h"

namespace fastcomm {

/// Reduces sources[0][i], sources[1][i], ... into new tensors. Returns them, and behind them the three
/// results of tensors/gradients.h. Divided among torch's intra-op threads. Raises Error: lists that
/// differ in length, shapes or dtypes, or what GradientTensors refuses (kInvalidArgument).
TensorList fused_sum_lists(const std::vector<TensorList>& sources, const GradientOptions& options);

/// The three results of tensors/gradients.h for gradients that are left as they are.
TensorList gradient_norms(const TensorList& gradients, NormKind kind);

/// The norm of parts, which are on the CPU and fp64.
double norm_of(const at::Tensor& parts, NormKind kind);

}  // namespace fastcomm
