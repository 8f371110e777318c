// Operations that a stock engine does, as calls whose headers ranks compare before it starts.
//
// What must be equal on all ranks goes into the header or its signature: kind, root, reduction, dtype,
// sizes, the shapes of lists. What must fit in pairs, the sizes of an all_to_all, goes into its
// balance: every rank adds a hash for each message that it sends and subtracts one for each that it
// expects, so all ranks together come to zero where sizes agree.
//
// The checks here are those of arguments that only some ranks give (lists at a root, splits): a rank
// whose engine refuses a call that others' engines took would leave them waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "coll/call.h"

namespace fastcomm {

/// `tensor` has the same size and dtype on all ranks.
Call stock_call(OpKind kind, const at::Tensor& tensor, int root = -1);
Call stock_call(OpKind kind, const at::Tensor& tensor, const ::c10d::ReduceOp& op, int root = -1);

/// Every list has the same sizes and dtypes on all ranks, in order.
Call stock_call(OpKind kind, const std::vector<at::Tensor>& tensors);
Call stock_call(OpKind kind, const std::vector<at::Tensor>& tensors, const ::c10d::ReduceOp& op);

/// all_to_all over one tensor; splits are rows, or empty for equal parts.
Call stock_all_to_all(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& output_splits,
                      const std::vector<int64_t>& input_splits, int rank, int size);
/// all_to_all over a tensor a rank.
Call stock_all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                      int rank, int size);

/// Raises Error(kInvalidArgument) unless `lists` is one list of `size` tensors like `each`, at the
/// root, and empty elsewhere.
void check_root_list(const char* operation, const std::vector<std::vector<at::Tensor>>& lists,
                     const at::Tensor& each, bool is_root, int size);

}  // namespace fastcomm
