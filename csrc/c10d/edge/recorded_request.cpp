#include "c10d/edge/recorded_request.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"

namespace fastcomm {
namespace {

using ::c10d::OpType;
using Described = RecordedCall::Tensors;

void add(Described& described, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  described.sizes.push_back(tensor.sizes().vec());
  described.types.push_back(tensor.scalar_type());
}

Described described(at::TensorList tensors) {
  Described all;
  for (const at::Tensor& tensor : tensors) add(all, tensor);
  return all;
}

bool is_even(const Tensors& list) {
  return std::all_of(list.begin(), list.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.sizes() == list.front().sizes();
  });
}

int64_t length_of(const Tensors& list) {
  int64_t count = 0;
  for (const at::Tensor& tensor : list) count += tensor.defined() ? tensor.numel() : 0;
  return count;
}

/// A list with a tensor for each rank, as ProcessGroupNCCL flattens it to one: the number of ranks
/// comes first. A list of unequal ones is as long as all of them.
Described flattened(const Tensors& list) {
  Described one;
  if (list.empty() || !list.front().defined()) return one;
  std::vector<int64_t> sizes{length_of(list)};
  if (is_even(list)) {
    sizes = list.front().sizes().vec();
    sizes.insert(sizes.begin(), static_cast<int64_t>(list.size()));
  }
  one.sizes.push_back(std::move(sizes));
  one.types.push_back(list.front().scalar_type());
  return one;
}

Described described(at::TensorList tensors, c10::ArrayRef<Tensors> lists) {
  Described all = described(tensors);
  for (const Tensors& list : lists) {
    Described one = flattened(list);
    all.sizes.insert(all.sizes.end(), one.sizes.begin(), one.sizes.end());
    all.types.insert(all.types.end(), one.types.begin(), one.types.end());
  }
  return all;
}

/// Lists of a tensor for each rank, of unequal sizes. They differ between ranks on one side, and
/// the analyser would call that a mismatch: both sides are as long as all of them.
bool is_uneven(const Request& request) {
  const auto& lists = request.input_lists.empty() ? request.output_lists : request.input_lists;
  return lists.size() == 1 && !is_even(lists.front());
}

/// The words of ProcessGroupNCCL, which the analyser compares with a list.
std::string name_of(const Request& request, int rank) {
  switch (request.type) {
    case OpType::ALLREDUCE:
      return request.is_over_list() ? "allreduce_coalesced" : "all_reduce";
    case OpType::_ALLREDUCE_SPARSE:
      return "all_reduce";
    case OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
      return request.is_over_list() || is_uneven(request) ? "ALLGATHER_coalesced" : "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "_all_gather_base";
    case OpType::ALLGATHER_COALESCED:
      return request.output_lists.empty() ? "all_gather_into_tensor_coalesced"
                                          : "ALLGATHER_coalesced";
    case OpType::REDUCE_SCATTER:
      if (request.input_lists.empty()) return "reduce_scatter_tensor_coalesced";
      return is_uneven(request) ? "REDUCE_SCATTER_coalesced" : "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    case OpType::ALLTOALL_BASE:
    case OpType::ALLTOALL:
      return "all_to_all";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::SEND:
      return concat("send ", rank, "->", request.peer);
    case OpType::RECV:
      return concat("recv ", rank, "<-", request.peer);
    case OpType::BARRIER:
      return "all_reduce_barrier";
    default:
      return request.name();
  }
}

}  // namespace

RecordedCall recorded(const Request& request, int rank, Milliseconds timeout) {
  RecordedCall call;
  call.name = "nccl:" + name_of(request, rank);
  call.timeout = request.timeout == ::c10d::kUnsetTimeout ? timeout : request.timeout;
  call.is_message = request.is_message();
  if (request.type == OpType::ALLTOALL) {  // lists of a tensor for each rank
    call.inputs = flattened(request.inputs.vec());
    call.outputs = flattened(request.outputs.vec());
    return call;
  }
  call.inputs = described(request.inputs, request.input_lists);
  call.outputs = described(request.outputs, request.output_lists);
  if (is_uneven(request) && request.type != OpType::GATHER && request.type != OpType::SCATTER) {
    (request.input_lists.empty() ? call.inputs : call.outputs) =
        request.input_lists.empty() ? call.outputs : call.inputs;
  }
  if (call.inputs.sizes.empty() && !call.is_message) call.inputs = call.outputs;  // in place
  return call;
}

}  // namespace fastcomm
