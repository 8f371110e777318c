// reduce_scatter, reduce_scatter_tensor.
#include <algorithm>
#include <cstring>

#include "c10d/native/joined_tensors.h"
#include "c10d/native/launch.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = NativeEngine::WorkPtr;

namespace {

/// Every rank's part in `inputs`: one tensor of all of them, or one a rank.
Prepared prepare(OpKind kind, OpType type, const at::Tensor& output, const Tensors& inputs,
                 const ::c10d::ReduceOp& op, int rank, int size) {
  Prepared made(kind, type);
  made.reduce(op, output);
  const Buffer target = made.write(output);
  made.of(target);
  made.call.output = target.data();
  for (const at::Tensor& input : inputs) {
    const auto* part = static_cast<const char*>(made.read(input).data());
    for (int k = inputs.size() == 1 ? size : 1; k > 0; --k, part += made.call.bytes()) {
      made.call.inputs.push_back(part);
    }
  }
  if (!apart(made.call.output, made.call.inputs, made.call.bytes(), rank)) {
    return prepare(kind, type, output, clones(inputs), op, rank, size);
  }
  made.payload.value = {output};
  return made;
}

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
    constexpr const char* kName = "reduce_scatter";
    FC_CHECK(outputs.size() == 1 && inputs.size() == 1, kName,
             ": takes one output and one list of inputs");
    const Tensors& parts = inputs[0];
    const at::Tensor& output = outputs[0];
    FC_CHECK(static_cast<int>(parts.size()) == getSize(), kName, ": ", parts.size(),
             " inputs for a group of ", getSize(), " ranks");
    for (const at::Tensor& part : parts) check_dtype(kName, part, "input", output, "output");
    check_parts(kName, parts[static_cast<size_t>(getRank())], "input of this rank", output,
                "output", 1);
    const bool even = std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) {
      return part.numel() == output.numel();
    });
    return launch(even ? prepare(OpKind::kReduceScatter, OpType::REDUCE_SCATTER, output, parts,
                                 opts.reduceOp, getRank(), getSize())
                       : prepare_uneven(output, parts, opts.reduceOp, getRank()),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr NativeEngine::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    check_parts("reduce_scatter_tensor", input, "input", output, "output", getSize());
    return launch(prepare(OpKind::kReduceScatterTensor, OpType::_REDUCE_SCATTER_BASE, output,
                          {input}, opts.reduceOp, getRank(), getSize()),
                  opts.timeout, opts.asyncOp);
  });
}

}  // namespace fastcomm
