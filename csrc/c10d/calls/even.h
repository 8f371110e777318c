// Calls in which every rank's message has the same size, put together.
//
// All of these raise Error(kInvalidArgument) and Error(kUnsupported) for what makes no sense.
#pragma once

#include "c10d/calls/prepared.h"

namespace fastcomm {

using Tensors = std::vector<at::Tensor>;

Prepared prepare_all_reduce(const Site& site, const Tensors& tensors, const ::c10d::ReduceOp& op);
Prepared prepare_broadcast(const Site& site, const Tensors& tensors, int64_t root);
Prepared prepare_reduce(const Site& site, const Tensors& tensors, const ::c10d::ReduceOp& op,
                        int64_t root);

/// The outputs that c10d gives of an all_gather, checked: one for each rank, maybe of several sizes.
const Tensors& checked_outputs(const Site& site, const std::vector<Tensors>& outputs,
                               const at::Tensor& input);
/// The inputs that c10d gives of a reduce_scatter, checked: one for each rank, maybe of several sizes.
const Tensors& checked_inputs(const Site& site, const Tensors& outputs,
                              const std::vector<Tensors>& inputs);
/// Whether all have the size of one.
bool are_even(const Tensors& tensors, const at::Tensor& one);

Prepared prepare_all_gather(const Site& site, const Tensors& outputs, const at::Tensor& input);
Prepared prepare_all_gather_into_tensor(const Site& site, const at::Tensor& output,
                                        const at::Tensor& input);
/// Every rank's part in `inputs`: one tensor of all of them, or one a rank.
Prepared prepare_reduce_scatter(const Site& site, OpKind kind, ::c10d::OpType type,
                                const at::Tensor& output, const Tensors& inputs,
                                const ::c10d::ReduceOp& op);

/// What c10d gives of an all_gather of several tensors, checked. Returns, for each input, an output for each
/// rank.
std::vector<Tensors> checked_lists(const Site& site, const std::vector<Tensors>& outputs,
                                   const Tensors& inputs);
/// The same with one output for each input. Returns the outputs as lists.
std::vector<Tensors> checked_wholes(const Site& site, const char* operation, const Tensors& outputs,
                                    const Tensors& inputs);
/// What c10d gives of a reduce_scatter of several tensors.
void check_parts_of_all(const Site& site, const char* operation, const Tensors& outputs,
                        const Tensors& inputs);

// A call for each tensor of a list; of copies, where tensors of the list overlap. Each header covers the
// whole list.

std::vector<Prepared> prepare_all_reduce_each(const Site& site, const Tensors& tensors,
                                              const ::c10d::ReduceOp& op);
/// `outputs` has, for each input, one tensor or one a rank.
std::vector<Prepared> prepare_all_gather_each(const Site& site, OpKind kind, const Tensors& inputs,
                                              const std::vector<Tensors>& outputs);
std::vector<Prepared> prepare_reduce_scatter_each(const Site& site, const Tensors& outputs,
                                                  const Tensors& inputs,
                                                  const ::c10d::ReduceOp& op);

}  // namespace fastcomm
