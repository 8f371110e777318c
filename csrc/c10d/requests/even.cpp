// Requests in which every rank's message has the same size.
#include <ATen/ATen.h>

#include "c10d/requests/forms.h"
#include "core/error.h"
#include "core/numeric.h"
#include "core/signature.h"

namespace fastcomm {
namespace {

/// One tensor, read and maybe written, in place.
void set_in_place(Prepared& made, const at::Tensor& tensor, bool written) {
  const Buffer& buffer = written ? made.write(tensor) : made.read(tensor);
  made.of(buffer);
  made.call.input = made.call.output = buffer.data();
}

/// "rows of 4096, eps 1e-06". Kept for the next call, which has the same as a rule.
const std::string& rows_in_words(const AddRmsNorm& tail) {
  thread_local size_t hidden = 0;
  thread_local float eps = 0;
  thread_local std::string text;
  if (text.empty() || hidden != tail.hidden() || eps != tail.eps()) {
    hidden = tail.hidden();
    eps = tail.eps();
    text = concat("rows of ", hidden, ", eps ", eps);
  }
  return text;
}

/// The outputs of an all_gather: one for each rank, maybe of several sizes.
const Tensors& checked_outputs(const Site& site, const Request& request, const at::Tensor& input) {
  FC_CHECK(request.output_lists.size() == 1, "all_gather: takes one list of outputs, not ",
           request.output_lists.size());
  const Tensors& list = request.output_lists[0];
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

/// The inputs of a reduce_scatter: one for each rank, maybe of several sizes.
const Tensors& checked_inputs(const Site& site, const Request& request) {
  constexpr const char* kName = "reduce_scatter";
  FC_CHECK(request.outputs.size() == 1 && request.input_lists.size() == 1, kName,
           ": takes one output and one list of inputs");
  const Tensors& parts = request.input_lists[0];
  const at::Tensor& output = request.outputs[0];
  FC_CHECK(static_cast<int>(parts.size()) == site.size, kName, ": ", parts.size(),
           " inputs for a group of ", site.size, " ranks");
  for (const at::Tensor& part : parts) check_dtype(kName, part, "input", output, "output");
  check_parts(kName, parts[static_cast<size_t>(site.rank)], "input of this rank", output, "output",
              1);
  return parts;
}

void add_all_gather_even(const Site& site, const at::Tensor& input, const Tensors& outputs,
                         Calls& calls) {
  Prepared& made = calls.emplace_back(OpKind::kAllGather, site.home);
  const Buffer own = made.read(input);
  made.of(own);
  made.call.input = own.data();
  for (const at::Tensor& output : outputs) made.call.outputs.push_back(made.write(output).data());
  if (apart(own.data(), made.call.outputs, own.bytes(), site.rank)) return;
  calls.pop_back();
  add_all_gather_even(site, input.clone(), outputs, calls);
}

/// Every rank's part in `inputs`: one tensor of all of them, or one for each rank.
void add_reduce_scatter_even(const Site& site, const Request& request, at::TensorList inputs,
                             Calls& calls) {
  Prepared& made = calls.emplace_back(request.kind, site.home);
  made.reduce(*request.op, request.outputs[0]);
  const Buffer target = made.write(request.outputs[0]);
  made.of(target);
  made.call.output = target.data();
  for (const at::Tensor& input : inputs) {
    const auto* part = static_cast<const char*>(made.read(input).data());
    for (int k = inputs.size() == 1 ? site.size : 1; k > 0; --k, part += made.call.bytes()) {
      made.call.inputs.push_back(part);
    }
  }
  if (apart(made.call.output, made.call.inputs, made.call.bytes(), site.rank)) return;
  calls.pop_back();
  add_reduce_scatter_even(site, request, clones(inputs), calls);
}

}  // namespace

void add_barrier(const Site& site, const Request&, Calls& calls) {
  calls.emplace_back(OpKind::kBarrier, site.home);
}

void add_all_reduce(const Site& site, const Request& request, Calls& calls) {
  const at::Tensor& tensor = only("all_reduce", request.outputs);
  if (tensor.layout() == at::kSparse) return add_all_reduce_sparse(site, request, calls);
  Prepared& made = calls.emplace_back(OpKind::kAllReduce, site.home);
  made.reduce(*request.op, tensor);
  set_in_place(made, tensor, true);
}

void add_all_reduce_add_rms_norm(const Site& site, const Request& request, Calls& calls) {
  const at::Tensor& tensor = only("all_reduce_add_rms_norm", request.outputs);
  Prepared& made = calls.emplace_back(OpKind::kAllReduceAddRmsNorm, site.home);
  made.reduce(*request.op, tensor);
  set_in_place(made, tensor, true);
  const AddRmsNorm& tail = **request.tail;
  made.call.tail = *request.tail;
  made.call.signature = mix(mix(made.call.signature, tail.hidden()), float_bits(tail.eps()));
  made.call.detail = rows_in_words(tail);
}

void add_broadcast(const Site& site, const Request& request, Calls& calls) {
  Prepared& made = calls.emplace_back(OpKind::kBroadcast, site.home);
  const at::Tensor& tensor = only("broadcast", request.outputs);
  made.call.root = checked_root("broadcast", request.root, site.size);
  set_in_place(made, tensor, made.call.root != site.rank);
}

void add_reduce(const Site& site, const Request& request, Calls& calls) {
  Prepared& made = calls.emplace_back(OpKind::kReduce, site.home);
  const at::Tensor& tensor = only("reduce", request.outputs);
  made.call.root = checked_root("reduce", request.root, site.size);
  made.reduce(*request.op, tensor);
  const bool is_root = made.call.root == site.rank;
  set_in_place(made, tensor, is_root);
  if (!is_root) made.call.output = nullptr;
}

void add_all_gather(const Site& site, const Request& request, Calls& calls) {
  const at::Tensor& input = only("all_gather", request.inputs);
  const Tensors& list = checked_outputs(site, request, input);
  const auto add = are_even(list, input) ? add_all_gather_even : add_all_gather_uneven;
  add(site, input, list, calls);
}

void add_all_gather_into_tensor(const Site& site, const Request& request, Calls& calls) {
  Prepared& made = calls.emplace_back(OpKind::kAllGatherIntoTensor, site.home);
  const at::Tensor &input = request.inputs[0], &output = request.outputs[0];
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
}

void add_reduce_scatter(const Site& site, const Request& request, Calls& calls) {
  const Tensors& parts = checked_inputs(site, request);
  are_even(parts, request.outputs[0]) ? add_reduce_scatter_even(site, request, parts, calls)
                                      : add_reduce_scatter_uneven(site, request, calls);
}

void add_reduce_scatter_tensor(const Site& site, const Request& request, Calls& calls) {
  check_parts("reduce_scatter_tensor", request.inputs[0], "input", request.outputs[0], "output",
              site.size);
  add_reduce_scatter_even(site, request, request.inputs, calls);
}

}  // namespace fastcomm
