// all_gather, all_gather_into_tensor.
#include "c10d/calls/even.h"
#include "c10d/calls/pairs.h"
#include "c10d/native/launch.h"

namespace fastcomm {

using WorkPtr = NativeEngine::WorkPtr;

WorkPtr NativeEngine::allgather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    const at::Tensor& input = only("all_gather", inputs);
    const Tensors& list = checked_outputs(site(), outputs, input);
    return launch(are_even(list, input) ? prepare_all_gather(site(), list, input)
                                        : prepare_all_gather_uneven(site(), list, input),
                  opts.timeout, opts.asyncOp);
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
