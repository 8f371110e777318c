// reduce_scatter, reduce_scatter_tensor.
#include <cstring>

#include "c10d/calls/even.h"
#include "c10d/native/joined_tensors.h"
#include "c10d/native/launch.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = NativeEngine::WorkPtr;

namespace {

/// Parts of several sizes, which every rank knows: all of them are reduced, and one is kept.
Prepared prepare_uneven(const at::Tensor& output, const Tensors& inputs, const ::c10d::ReduceOp& op,
                        int rank) {
  Prepared made(OpKind::kReduceScatterUneven, OpType::REDUCE_SCATTER);
  made.reduce(op, output);
  made.compare(inputs);
  const JoinedTensors joined(inputs);
  const Buffer target = made.write(output);
  made.call.dtype = target.dtype();
  made.call.count = joined.bytes() / dtype_size(target.dtype());
  made.call.input = made.call.output = joined.data();
  made.payload.settle = [joined, target, own = joined.at(static_cast<size_t>(rank))] {
    if (target.bytes() != 0) std::memcpy(target.data(), own, target.bytes());
  };
  made.payload.value = {output};
  made.payload.shown = inputs;
  return made;
}

}  // namespace

WorkPtr NativeEngine::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                     const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    const Tensors& parts = checked_inputs(site(), outputs, inputs);
    const at::Tensor& output = outputs[0];
    return launch(are_even(parts, output)
                      ? prepare_reduce_scatter(site(), OpKind::kReduceScatter,
                                               OpType::REDUCE_SCATTER, output, parts, opts.reduceOp)
                      : prepare_uneven(output, parts, opts.reduceOp, getRank()),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr NativeEngine::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    check_parts("reduce_scatter_tensor", input, "input", output, "output", getSize());
    return launch(
        prepare_reduce_scatter(site(), OpKind::kReduceScatterTensor, OpType::_REDUCE_SCATTER_BASE,
                               output, {input}, opts.reduceOp),
        opts.timeout, opts.asyncOp);
  });
}

}  // namespace fastcomm
