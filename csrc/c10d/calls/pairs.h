// Calls whose sizes are known in pairs (coll/messages.h), put together.
//
// All of these raise Error(kInvalidArgument) and Error(kUnsupported) for what makes no sense.
#pragma once

#include <cstdint>
#include <vector>

#include "c10d/calls/prepared.h"

namespace fastcomm {

using Tensors = std::vector<at::Tensor>;

/// One tensor with a part for each rank, to one with a part from each; splits are rows, or empty for equal parts.
Prepared prepare_all_to_all_single(const Site& site, const at::Tensor& output,
                                   const at::Tensor& input,
                                   const std::vector<int64_t>& output_splits,
                                   const std::vector<int64_t>& input_splits);
/// A tensor to each rank, and one from each.
Prepared prepare_all_to_all(const Site& site, const Tensors& outputs, const Tensors& inputs);
/// For checked_outputs (c10d/calls/even.h), which tell every rank how long each one's message is.
Prepared prepare_all_gather_uneven(const Site& site, const Tensors& outputs,
                                   const at::Tensor& input);

}  // namespace fastcomm
