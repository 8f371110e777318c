// Gradients on a device: one kernel per pair of their types, and two for the results.
//
// Only in builds with FC_DEVICES. On the device's current stream; nothing waits, and a graph can
// capture it.
#pragma once

#include <vector>

#include "tensors/gradients.h"

namespace fastcomm {

/// Sums `sources[k][i]` over k into gradient i (launch_multi_gradient), and writes the list's
/// results to `results` (make_gradient_results). Raises Error.
void sum_gradients(const std::vector<Gradient>& gradients,
                   const std::vector<std::vector<const char*>>& sources, const GradientSpec& spec,
                   int device, const TensorList& results);

/// The results for unchanged gradients. `scratch` is gradient_scratch's of the same list.
void look_at_gradients(const std::vector<Gradient>& gradients, NormKind norm, int device,
                       const at::Tensor& scratch, const TensorList& results);

/// Device memory that each of these needs while it runs. Raises c10::Error if there is none.
at::Tensor gradient_scratch(const std::vector<Gradient>& gradients, int device);

}  // namespace fastcomm
