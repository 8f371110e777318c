// all_gather, all_gather_into_tensor.
#include <memory>

#include "c10d/calls/even.h"
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

}  // namespace

WorkPtr NativeEngine::allgather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    const at::Tensor& input = only("all_gather", inputs);
    const Tensors& list = checked_outputs(site(), outputs, input);
    Prepared made = are_even(list, input) ? prepare_all_gather(site(), list, input)
                                          : prepare_uneven(list, input, getRank());
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
    return launch(prepare_all_gather_into_tensor(site(), output, input), opts.timeout,
                  opts.asyncOp);
  });
}

}  // namespace fastcomm
