// Lists of gradients of one process's replicas, reduced in one pass: a fused all_reduce without
// ranks, with the same bits. On the CPU, divided among torch's intra-op threads, or on CUDA devices
// (ops/fused_device.h), where results stay and no host waits for them.
#pragma once

#include <vector>

#include "tensors/gradients.h"

namespace fastcomm {

/// Reduces sources[0][i], sources[1][i], ... into new tensors. Returns them, followed by the three
/// results of tensors/gradients.h. Raises Error(kInvalidArgument): lists that differ in length,
/// shapes or dtypes, too many of them, or the errors of GradientTensors.
TensorList fused_sum_lists(const std::vector<TensorList>& sources, const GradientOptions& options);

/// The three results of tensors/gradients.h for gradients that are left unchanged.
TensorList gradient_norms(const TensorList& gradients, NormKind kind);

/// The norm of parts, in fp64, on their device.
at::Tensor norm_of(const at::Tensor& parts, NormKind kind);

}  // namespace fastcomm
