#include "c10d/stock_call.h"

#include <c10/core/ScalarType.h>

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "c10d/convert.h"
#include "core/error.h"
#include "core/signature.h"

namespace fastcomm {
namespace {

uint64_t message(int from, int to, int64_t elements) {
  return mix(mix(mix(0, from), to), static_cast<uint64_t>(elements));
}

std::string name_of(const at::Tensor& tensor) {
  return std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

void add_tensor(Call& call, const at::Tensor& tensor) {
  call.signature = mix(call.signature, static_cast<uint64_t>(tensor.scalar_type()));
  call.signature = mix(call.signature, static_cast<uint64_t>(tensor.layout()));
  call.signature = mix(call.signature, static_cast<uint64_t>(tensor.numel()));
}

std::string list_of(const std::vector<int64_t>& numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) text += concat(i == 0 ? "" : ", ", numbers[i]);
  return text + "]";
}

/// Elements of the part for each rank.
std::vector<int64_t> parts(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  if (splits.empty()) return std::vector<int64_t>(size, tensor.numel() / size);
  const int64_t rows = tensor.size(0);
  std::vector<int64_t> elements;
  for (const int64_t split : splits) {
    elements.push_back(rows == 0 ? 0 : split * (tensor.numel() / rows));
  }
  return elements;
}

void set_messages(Call& call, const std::vector<int64_t>& sent,
                  const std::vector<int64_t>& expected, int rank) {
  for (size_t peer = 0; peer < sent.size(); ++peer) {
    call.balance += message(rank, static_cast<int>(peer), sent[peer]);
    call.balance -= message(static_cast<int>(peer), rank, expected[peer]);
  }
  call.detail = concat("sends ", list_of(sent), ", expects ", list_of(expected));
}

std::vector<int64_t> sizes(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> elements;
  for (const at::Tensor& tensor : tensors) elements.push_back(tensor.numel());
  return elements;
}

}  // namespace

Call stock_call(OpKind kind, const at::Tensor& tensor, int root) {
  Call call;
  call.meeting = true;
  call.kind = kind;
  call.root = root;
  call.dtype = dtype_of(tensor.scalar_type());
  call.count = static_cast<uint64_t>(tensor.numel());
  add_tensor(call, tensor);
  if (call.dtype == DType::kOther) call.detail = name_of(tensor);
  if (tensor.layout() != at::kStrided) call.detail += " sparse";
  return call;
}

Call stock_call(OpKind kind, const at::Tensor& tensor, const ::c10d::ReduceOp& op, int root) {
  Call call = stock_call(kind, tensor, root);
  call.op = reduce_op_of(op);
  return call;
}

Call stock_call(OpKind kind, const std::vector<at::Tensor>& tensors) {
  FC_CHECK(!tensors.empty(), op_kind_name(kind), ": takes at least one tensor");
  Call call = stock_call(kind, tensors[0]);
  for (size_t i = 1; i < tensors.size(); ++i) {
    add_tensor(call, tensors[i]);
    call.count += static_cast<uint64_t>(tensors[i].numel());
  }
  call.detail = concat("in tensors of ", list_of(sizes(tensors)));
  return call;
}

Call stock_call(OpKind kind, const std::vector<at::Tensor>& tensors, const ::c10d::ReduceOp& op) {
  Call call = stock_call(kind, tensors);
  call.op = reduce_op_of(op);
  return call;
}

Call stock_all_to_all(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& output_splits,
                      const std::vector<int64_t>& input_splits, int rank, int size) {
  ::c10d::checkSplitSizes(input_splits, input, size);
  ::c10d::checkSplitSizes(output_splits, output, size);
  FC_CHECK(input.scalar_type() == output.scalar_type(), "all_to_all_single: the input has dtype ",
           input.scalar_type(), ", the output ", output.scalar_type());
  Call call = stock_call(OpKind::kAllToAllSingle, input);
  call.signature = static_cast<uint64_t>(input.scalar_type());  // sizes differ between ranks
  call.count = 0;
  set_messages(call, parts(input, input_splits, size), parts(output, output_splits, size), rank);
  return call;
}

Call stock_all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                      int rank, int size) {
  FC_CHECK(static_cast<int>(outputs.size()) == size && static_cast<int>(inputs.size()) == size,
           "all_to_all: ", outputs.size(), " outputs and ", inputs.size(),
           " inputs for a group of ", size, " ranks");
  Call call = stock_call(OpKind::kAllToAll, inputs[0]);
  call.signature = static_cast<uint64_t>(inputs[0].scalar_type());
  call.count = 0;
  set_messages(call, sizes(inputs), sizes(outputs), rank);
  return call;
}

void check_root_list(const char* operation, const std::vector<std::vector<at::Tensor>>& lists,
                     const at::Tensor& each, bool is_root, int size) {
  if (!is_root) {
    FC_CHECK(lists.empty(), operation, ": only the root gives a list of tensors");
    return;
  }
  FC_CHECK(lists.size() == 1 && static_cast<int>(lists[0].size()) == size, operation,
           ": the root gives one list of ", size, " tensors, one a rank");
  for (int peer = 0; peer < size; ++peer) {
    const at::Tensor& tensor = lists[0][peer];
    FC_CHECK(tensor.numel() == each.numel() && tensor.scalar_type() == each.scalar_type(),
             operation, ": tensor ", peer, " of the root's list has ", tensor.numel(),
             " elements of ", tensor.scalar_type(), ", the root's own has ", each.numel(), " of ",
             each.scalar_type());
  }
}

}  // namespace fastcomm
