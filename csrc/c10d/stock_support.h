// What the stock engine (Gloo) can do, asked before a call goes there: its own errors name neither
// operation nor dtype, and some come only from its threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace fastcomm {

/// Raises Error(kUnsupported) with operation, device and layout unless Gloo moves such a tensor.
void require_stock(const char* operation, const at::Tensor& tensor);

/// Raises Error(kUnsupported) with reduction and dtype unless Gloo reduces such a tensor.
void require_stock_all_reduce(const at::Tensor& tensor, const ::c10d::ReduceOp& op);

}  // namespace fastcomm
