#include "c10d/requests/plain.h"

#include "c10d/requests/prepared.h"
#include "tensors/plain_tensors.h"

namespace fastcomm {
namespace {

/// True if the elements lie one after the other in the host's memory, as numbers that are moved and
/// reduced as they are.
bool is_plain_here(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && !tensor.is_complex() && is_plain(tensor) &&
         tensor.is_contiguous();
}

/// Sets what describes one rank's message.
bool set_message(Call& call, const at::Tensor& message) {
  call.dtype = dtype_of(message.scalar_type());
  call.count = static_cast<uint64_t>(message.numel());
  return call.dtype != DType::kOther;
}

bool set_plain_reduction(Call& call, const ::c10d::ReduceOp& op, const at::Tensor& tensor) {
  call.op = reduce_op_of(op);
  return call.op != ReduceOp::kPremulSum &&
         why_no_reduction_of(tensor.scalar_type(), call.op) == nullptr;
}

/// One tensor, in place.
bool set_in_place(Call& call, at::TensorList tensors) {
  if (tensors.size() != 1 || !is_plain_here(tensors[0])) return false;
  call.input = call.output = tensors[0].data_ptr();
  return set_message(call, tensors[0]);
}

/// One tensor of this rank's message and one of a message for each rank, apart from each other.
template <class Pointer>
bool set_parts(const Site& site, Call& call, at::TensorList part, at::TensorList whole,
               std::vector<Pointer>& places) {
  if (part.size() != 1 || whole.size() != 1 || !is_plain_here(part[0]) || !is_plain_here(whole[0]))
    return false;
  if (part[0].scalar_type() != whole[0].scalar_type() ||
      whole[0].numel() != part[0].numel() * site.size || !set_message(call, part[0]))
    return false;
  auto* at = static_cast<char*>(whole[0].data_ptr());
  for (int peer = 0; peer < site.size; ++peer, at += call.bytes()) places.push_back(at);
  return apart(part[0].data_ptr(), places, call.bytes(), site.rank);
}

}  // namespace

bool set_plain_call(const Site& site, const Request& request, Call& call) {
  call.kind = request.kind;
  switch (request.kind) {
    case OpKind::kBarrier:
      return true;
    case OpKind::kAllReduce:
      return set_in_place(call, request.outputs) &&
             set_plain_reduction(call, *request.op, request.outputs[0]);
    case OpKind::kBroadcast:
      call.root = static_cast<int>(request.root);
      return request.root >= 0 && request.root < site.size && set_in_place(call, request.outputs);
    case OpKind::kAllGatherIntoTensor:
      if (!set_parts(site, call, request.inputs, request.outputs, call.outputs)) return false;
      call.input = request.inputs[0].data_ptr();
      return true;
    case OpKind::kReduceScatterTensor:
      if (!set_parts(site, call, request.outputs, request.inputs, call.inputs) ||
          !set_plain_reduction(call, *request.op, request.outputs[0]))
        return false;
      call.output = request.outputs[0].data_ptr();
      return true;
    default:
      return false;
  }
}

std::optional<ShortCall> short_call_of(OpKind kind, at::TensorList tensors,
                                       const ::c10d::ReduceOp& op) {
  if (kind == OpKind::kBarrier) return ShortCall{kind};
  if (kind != OpKind::kAllReduce || tensors.size() != 1 || !is_plain_here(tensors[0])) {
    return std::nullopt;
  }
  const at::Tensor& tensor = tensors[0];
  const ReduceOp reduction = reduce_op_of(op);
  const DType dtype = dtype_of(tensor.scalar_type());
  if (reduction == ReduceOp::kPremulSum || dtype == DType::kOther ||
      why_no_reduction_of(tensor.scalar_type(), reduction) != nullptr)
    return std::nullopt;
  void* const data = tensor.data_ptr();
  return ShortCall{kind, dtype, reduction, static_cast<uint64_t>(tensor.numel()), data, data};
}

}  // namespace fastcomm
