#include "c10d/calls/even.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"

namespace fastcomm {

using ::c10d::OpType;

namespace {

/// One tensor, read and written.
Prepared in_place(Prepared made, const Tensors& tensors) {
  const Buffer buffer = made.write(tensors[0]);
  made.of(buffer);
  made.call.input = made.call.output = buffer.data();
  made.payload.value = made.payload.shown = tensors;
  return made;
}

}  // namespace

Prepared prepare_all_reduce(const Site& site, const Tensors& tensors, const ::c10d::ReduceOp& op) {
  Prepared made(OpKind::kAllReduce, OpType::ALLREDUCE, site.place);
  made.reduce(op, only(made.name(), tensors));
  return in_place(std::move(made), tensors);
}

Prepared prepare_broadcast(const Site& site, const Tensors& tensors, int64_t root) {
  Prepared made(OpKind::kBroadcast, OpType::BROADCAST, site.place);
  const at::Tensor& tensor = only(made.name(), tensors);
  made.call.root = checked_root(made.name(), root, site.size);
  if (made.call.root != site.rank) return in_place(std::move(made), tensors);
  const Buffer buffer = made.read(tensor);
  made.of(buffer);
  made.call.input = made.call.output = buffer.data();
  made.payload.value = made.payload.shown = tensors;
  return made;
}

Prepared prepare_reduce(const Site& site, const Tensors& tensors, const ::c10d::ReduceOp& op,
                        int64_t root) {
  Prepared made(OpKind::kReduce, OpType::REDUCE, site.place);
  const at::Tensor& tensor = only(made.name(), tensors);
  made.call.root = checked_root(made.name(), root, site.size);
  made.reduce(op, tensor);
  const bool is_root = made.call.root == site.rank;
  const Buffer buffer = is_root ? made.write(tensor) : made.read(tensor);
  made.of(buffer);
  made.call.input = buffer.data();
  if (is_root) made.call.output = buffer.data();
  made.payload.value = made.payload.shown = tensors;
  return made;
}

const Tensors& checked_outputs(const Site& site, const std::vector<Tensors>& outputs,
                               const at::Tensor& input) {
  FC_CHECK(outputs.size() == 1, "all_gather: takes one list of outputs, not ", outputs.size());
  const Tensors& list = outputs[0];
  FC_CHECK(static_cast<int>(list.size()) == site.size, "all_gather: ", list.size(),
           " output tensors for a group of ", site.size, " ranks");
  for (size_t i = 0; i < list.size(); ++i) {
    FC_CHECK(list[i].scalar_type() == input.scalar_type(), "all_gather: output ", i, " has dtype ",
             list[i].scalar_type(), ", the input ", input.scalar_type());
  }
  const auto own = static_cast<size_t>(site.rank);
  FC_CHECK(list[own].numel() == input.numel(), "all_gather: output ", own, ", this rank's, has ",
           list[own].numel(), " elements, its input ", input.numel());
  return list;
}

const Tensors& checked_inputs(const Site& site, const Tensors& outputs,
                              const std::vector<Tensors>& inputs) {
  constexpr const char* kName = "reduce_scatter";
  FC_CHECK(outputs.size() == 1 && inputs.size() == 1, kName,
           ": takes one output and one list of inputs");
  const Tensors& parts = inputs[0];
  const at::Tensor& output = outputs[0];
  FC_CHECK(static_cast<int>(parts.size()) == site.size, kName, ": ", parts.size(),
           " inputs for a group of ", site.size, " ranks");
  for (const at::Tensor& part : parts) check_dtype(kName, part, "input", output, "output");
  check_parts(kName, parts[static_cast<size_t>(site.rank)], "input of this rank", output, "output",
              1);
  return parts;
}

bool are_even(const Tensors& tensors, const at::Tensor& one) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == one.numel(); });
}

Prepared prepare_all_gather(const Site& site, const Tensors& outputs, const at::Tensor& input) {
  Prepared made(OpKind::kAllGather, OpType::ALLGATHER, site.place);
  const Buffer own = made.read(input);
  made.of(own);
  made.call.input = own.data();
  for (const at::Tensor& output : outputs) made.call.outputs.push_back(made.write(output).data());
  if (!apart(own.data(), made.call.outputs, own.bytes(), site.rank)) {
    return prepare_all_gather(site, outputs, input.clone());
  }
  made.payload.value = outputs;
  return made;
}

Prepared prepare_all_gather_into_tensor(const Site& site, const at::Tensor& output,
                                        const at::Tensor& input) {
  Prepared made(OpKind::kAllGatherIntoTensor, OpType::_ALLGATHER_BASE, site.place);
  check_parts(made.name(), output, "output", input, "input", site.size);
  Buffer part = made.read(input);
  made.of(part);
  auto* at = static_cast<char*>(made.write(output).data());
  for (int peer = 0; peer < site.size; ++peer, at += made.call.bytes()) {
    made.call.outputs.push_back(at);
  }
  if (!apart(part.data(), made.call.outputs, made.call.bytes(), site.rank)) {
    part = made.read(input.clone());
  }
  made.call.input = part.data();
  made.payload.value = {output};
  return made;
}

Prepared prepare_reduce_scatter(const Site& site, OpKind kind, OpType type,
                                const at::Tensor& output, const Tensors& inputs,
                                const ::c10d::ReduceOp& op) {
  Prepared made(kind, type, site.place);
  made.reduce(op, output);
  const Buffer target = made.write(output);
  made.of(target);
  made.call.output = target.data();
  for (const at::Tensor& input : inputs) {
    const auto* part = static_cast<const char*>(made.read(input).data());
    for (int k = inputs.size() == 1 ? site.size : 1; k > 0; --k, part += made.call.bytes()) {
      made.call.inputs.push_back(part);
    }
  }
  if (!apart(made.call.output, made.call.inputs, made.call.bytes(), site.rank)) {
    return prepare_reduce_scatter(site, kind, type, output, clones(inputs), op);
  }
  made.payload.value = {output};
  return made;
}

}  // namespace fastcomm
