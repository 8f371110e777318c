#include "c10d/edge/call_events.h"

#include <ATen/core/ivalue.h>

#include <string>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fastcomm {
namespace {

using ::c10d::OpType;
using torch::ParamCommsDebugInfo;

/// The words of ProcessGroupNCCL, which tools look for. Ours for what it does not have.
std::string name_of(const Request& request) {
  switch (request.type) {
    case OpType::ALLREDUCE:
      return "allreduce";
    case OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
      return "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "_allgather_base";
    case OpType::ALLGATHER_COALESCED:
      return request.output_lists.empty() ? "all_gather_into_tensor_coalesced"
                                          : "allgather_coalesced";
    case OpType::REDUCE_SCATTER:
      return request.input_lists.empty() ? "reduce_scatter_tensor_coalesced" : "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    case OpType::ALLTOALL_BASE:
      return request.input_splits.empty() && request.output_splits.empty() ? "all_to_all"
                                                                           : "all_to_allv";
    case OpType::ALLTOALL:
      return "all_to_all";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::SEND:
      return "send";
    case OpType::RECV:
      return "recv";
    case OpType::BARRIER:
      return "barrier";
    default:
      return request.name();
  }
}

int64_t elements(const Tensors& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.layout() == at::kStrided) count += tensor.numel();
  }
  return count;
}

/// The distance between the ranks; 0 if it is not the same everywhere, as of a single one.
int stride_of(const std::vector<uint64_t>& ranks) {
  if (ranks.size() < 2) return 0;
  const auto stride = static_cast<int>(ranks[1] - ranks[0]);
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (static_cast<int>(ranks[i] - ranks[i - 1]) != stride) return 0;
  }
  return stride;
}

/// Older versions of torch do not tell asynchronous calls from others, nor the number of a call.
template <class Info, class... Data>
std::shared_ptr<Info> info_of(bool async, Data&&... data) {
  if constexpr (std::is_constructible_v<Info, Data..., bool>) {
    return std::make_shared<Info>(std::forward<Data>(data)..., async);
  } else {
    return std::make_shared<Info>(std::forward<Data>(data)...);
  }
}
template <class Info, class Sequence>
auto set_sequence(Info& info, const Sequence& sequence, int)
    -> decltype(info.setSequenceInfo(0, false)) {
  info.setSequenceInfo(std::get<0>(sequence), std::get<1>(sequence));
}
template <class Info, class Sequence>
void set_sequence(Info&, const Sequence&, ...) {}

}  // namespace

void CallEvents::begin_comms(::c10d::Backend& group, const Engine& engine, const Request& request) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!callbacks || engine.tells_itself()) return;
  const Tensors outputs = Request::joined(request.outputs, request.output_lists);
  Tensors inputs = Request::joined(request.inputs, request.input_lists);
  if (inputs.empty() && !request.is_message()) inputs = outputs;  // in place
  const Tensors& typed = inputs.empty() ? outputs : inputs;
  const at::ScalarType dtype = typed.empty() ? at::kByte : typed.front().scalar_type();
  const std::vector<int64_t> given = request.input_splits.vec(),
                             taken = request.output_splits.vec();
  const auto& ranks = group.getBackendOptions()->global_ranks_in_group;
  const int start = ranks.empty() ? 0 : static_cast<int>(ranks.front());
  const int stride = stride_of(ranks);
  const std::tuple names{group.getGroupUid(), group.getGroupDesc()};
  const std::string name = name_of(request);
  // As ProcessGroupNCCL: a message's peer, the root if there is one.
  const int rank = request.is_message()               ? request.peer
                   : request.root != Request::kNoRank ? static_cast<int>(request.root)
                                                      : group.getRank();
  const auto info = info_of<ParamCommsDebugInfo>(request.async, names, rank, std::string(name),
                                                 elements(inputs), elements(outputs), dtype, given,
                                                 taken, start, stride, group.getSize());
  const std::tuple sequence{static_cast<int64_t>(group.getSequenceNumberForGroup()) + 1,
                            request.is_message()};
  set_sequence(*info, sequence, 0);
  guard_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, info);
  comms_.emplace(std::move(*callbacks));
  const std::vector<c10::IValue> told{sequence, names, inputs, outputs, rank,           name,
                                      given,    taken, start,  stride,  group.getSize()};
  comms_->before(at::kParamCommsCallName.c_str(), &told);
}

void CallEvents::begin_call(at::StepCallbacks&& callbacks, const Engine& engine,
                            const Request& request) {
  call_.emplace(std::move(callbacks));
  // As those of other backends, whose events are asynchronous for any waiter.
  if (!engine.is_on_devices()) call_->_setAsync();
  std::vector<c10::IValue> tensors;  // read as the event begins, and not after
  for (const at::Tensor& tensor : request.shown()) tensors.emplace_back(tensor);
  call_->before(request.title(), &tensors);
}

}  // namespace fastcomm
