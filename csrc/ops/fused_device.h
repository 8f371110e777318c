// Lists of gradients on CUDA devices, reduced in one pass: one kernel over a table of pointers for
// each type, and one or two small ones for the norms (kernels/cuda/multi_gradient.h). The bits are
// those of the CPU.
//
// Streams and memory as in ops/device_lists.h. Nothing waits for a device, so a graph can capture a
// call whose lists lie on one device. Results are on the device of the first list. If that does not
// reach another list's memory, the sums go the way of sum_device_lists, and norms are taken of
// their results.
//
// Raises Error: the errors of ops/fused_lists.h; a list that is not on one device; more than
// kMaxReduceSources lists (kInvalidArgument); built without CUDA (kUnsupported); CUDA fails
// (kSystem).
#pragma once

#include <vector>

#include "tensors/gradients.h"

namespace fastcomm {

/// As fused_sum_lists; the first list is not empty, and all have the same length, shapes and
/// dtypes.
TensorList fused_sum_device_lists(const std::vector<TensorList>& sources,
                                  const GradientOptions& options);

/// As gradient_norms; all on one device.
TensorList device_gradient_norms(const TensorList& gradients, NormKind kind);

/// As norm_of, on the device of `parts`.
at::Tensor device_norm_of(const at::Tensor& parts, NormKind kind);

}  // namespace fastcomm
