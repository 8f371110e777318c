// all_gather, all_gather_into_tensor.
#include <algorithm>
#include <memory>

#include "c10d/native/launch.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = NativeEngine::WorkPtr;

namespace {

/// What is known on every rank: rank r's message is as long as its output.
Prepared prepare_uneven(const Tensors& outputs, const at::Tensor& input, int rank) {
  const int size = static_cast<int>(outputs.size());
  Prepared made(OpKind::kAllGatherUneven, OpType::ALLGATHER);
  made.compare(outputs);
  const Buffer own = made.read(input);
  made.call.dtype = own.dtype();
  auto messages = std::make_shared<Messages>(size);
  messages->same_for_all = true;
  for (size_t peer = 0; peer < outputs.size(); ++peer) {
    const Buffer output = made.write(outputs[peer]);
    messages->sends[peer] = {static_cast<const char*>(own.data()), own.bytes()};
    messages->receives[peer] = {static_cast<char*>(output.data()), output.bytes()};
  }
  if (!apart(*messages, rank)) return prepare_uneven(outputs, input.clone(), rank);
  made.exchange(std::move(messages), rank);
  return made;
}

Prepared prepare_even(const Tensors& outputs, const at::Tensor& input, int rank) {
  Prepared made(OpKind::kAllGather, OpType::ALLGATHER);
  const Buffer own = made.read(input);
  made.of(own);
  made.call.input = own.data();
  for (const at::Tensor& output : outputs) made.call.outputs.push_back(made.write(output).data());
  if (!apart(own.data(), made.call.outputs, own.bytes(), rank)) {
    return prepare_even(outputs, input.clone(), rank);
  }
  return made;
}

}  // namespace

WorkPtr NativeEngine::allgather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    const at::Tensor& input = only("all_gather", inputs);
    FC_CHECK(outputs.size() == 1, "all_gather: takes one list of outputs, not ", outputs.size());
    const Tensors& list = outputs[0];
    FC_CHECK(static_cast<int>(list.size()) == getSize(), "all_gather: ", list.size(),
             " output tensors for a group of ", getSize(), " ranks");
    for (size_t i = 0; i < list.size(); ++i) {
      FC_CHECK(list[i].scalar_type() == input.scalar_type(), "all_gather: output ", i,
               " has dtype ", list[i].scalar_type(), ", the input ", input.scalar_type());
    }
    const auto own = static_cast<size_t>(getRank());
    FC_CHECK(list[own].numel() == input.numel(), "all_gather: output ", own, ", this rank's, has ",
             list[own].numel(), " elements, its input ", input.numel());
    const bool even = std::all_of(list.begin(), list.end(), [&](const at::Tensor& output) {
      return output.numel() == input.numel();
    });
    Prepared made =
        even ? prepare_even(list, input, getRank()) : prepare_uneven(list, input, getRank());
    made.payload.value = list;
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

void NativeEngine::gather_bytes(const void* own, void* all, size_t bytes, uint64_t signature,
                                std::string what_for) {
  Call call;
  call.kind = OpKind::kAllGather;
  call.dtype = DType::kOther;
  call.count = bytes;
  call.input = own;
  for (int rank = 0; rank < getSize(); ++rank) {
    call.outputs.push_back(static_cast<char*>(all) + static_cast<size_t>(rank) * bytes);
  }
  call.signature = signature;
  call.detail = std::move(what_for);
  const auto done = group()->run(call, options_->timeout, g_interrupt_check);
  if (const auto error = done->error()) std::rethrow_exception(error);
}

WorkPtr NativeEngine::_allgather_base(at::Tensor& output, at::Tensor& input,
                                      const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    check_parts("all_gather_into_tensor", output, "output", input, "input", getSize());
    Prepared made(OpKind::kAllGatherIntoTensor, OpType::_ALLGATHER_BASE);
    Buffer part = made.read(input);
    made.of(part);
    auto* at = static_cast<char*>(made.write(output).data());
    for (int peer = 0; peer < getSize(); ++peer, at += made.call.bytes()) {
      made.call.outputs.push_back(at);
    }
    if (!apart(part.data(), made.call.outputs, made.call.bytes(), getRank())) {
      part = made.read(input.clone());
    }
    made.call.input = part.data();
    made.payload.value = {output};
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

}  // namespace fastcomm
