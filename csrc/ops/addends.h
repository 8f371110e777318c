// The addends of sums: the checks of their forms, and their sum without one of our kernels.
#pragma once

#include <vector>

#include "tensors/plain_tensors.h"

namespace fastcomm {

/// Raises Error(kInvalidArgument), in torch's words, unless there is a list, all have the same
/// length, and the tensors of each place the same shape and dtype.
void check_addends(const std::vector<TensorList>& sources);

/// The sum of tensors of one dtype and device by torch's own addition, in the order of the fixed
/// tree; 16-bit floats in fp32, rounded once. For one addend, that addend itself.
at::Tensor tree_sum(TensorList addends);

}  // namespace fastcomm
