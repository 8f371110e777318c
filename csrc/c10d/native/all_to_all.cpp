// gather, scatter, all_to_all, all_to_all_single: messages whose sizes are known in pairs.
#include <memory>

#include "c10d/calls/pairs.h"
#include "c10d/native/launch.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = NativeEngine::WorkPtr;

namespace {

Messages::Sent sent(const Buffer& buffer) {
  return {static_cast<const char*>(buffer.data()), buffer.bytes()};
}

Messages::Expected expected(const Buffer& buffer) {
  return {static_cast<char*>(buffer.data()), buffer.bytes()};
}

Prepared prepare_gather(const Tensors& outputs, const at::Tensor& input, int root, int rank,
                        int size) {
  Prepared made(OpKind::kGather, OpType::GATHER);
  const Buffer own = made.read(input);
  auto messages = std::make_shared<Messages>(size);
  messages->sends[root] = sent(own);
  for (size_t peer = 0; peer < outputs.size(); ++peer) {
    messages->receives[peer] = expected(made.write(outputs[peer]));
  }
  if (!apart(*messages, rank)) return prepare_gather(outputs, input.clone(), root, rank, size);
  made.of(own);
  made.call.root = root;
  made.exchange(std::move(messages), rank);
  made.payload.value = outputs;
  return made;
}

Prepared prepare_scatter(const at::Tensor& output, const Tensors& inputs, int root, int rank,
                         int size) {
  Prepared made(OpKind::kScatter, OpType::SCATTER);
  const Buffer own = made.write(output);
  auto messages = std::make_shared<Messages>(size);
  messages->receives[root] = expected(own);
  for (size_t peer = 0; peer < inputs.size(); ++peer) {
    messages->sends[peer] = sent(made.read(inputs[peer]));
  }
  if (!apart(*messages, rank)) return prepare_scatter(output, clones(inputs), root, rank, size);
  made.of(own);
  made.call.root = root;
  made.exchange(std::move(messages), rank);
  made.payload.value = {output};
  return made;
}

}  // namespace

WorkPtr NativeEngine::gather(TensorLists& outputs, Tensors& inputs,
                             const ::c10d::GatherOptions& opts) {
  return translating([&] {
    const at::Tensor& input = only("gather", inputs);
    const int root = checked_root("gather", opts.rootRank, getSize());
    check_root_list("gather", outputs, input, root == getRank(), getSize());
    const Tensors list = outputs.empty() ? Tensors{} : outputs[0];
    return launch(prepare_gather(list, input, root, getRank(), getSize()), opts.timeout,
                  opts.asyncOp);
  });
}

WorkPtr NativeEngine::scatter(Tensors& outputs, TensorLists& inputs,
                              const ::c10d::ScatterOptions& opts) {
  return translating([&] {
    const at::Tensor& output = only("scatter", outputs);
    const int root = checked_root("scatter", opts.rootRank, getSize());
    check_root_list("scatter", inputs, output, root == getRank(), getSize());
    const Tensors list = inputs.empty() ? Tensors{} : inputs[0];
    return launch(prepare_scatter(output, list, root, getRank(), getSize()), opts.timeout,
                  opts.asyncOp);
  });
}

WorkPtr NativeEngine::alltoall_base(at::Tensor& output, at::Tensor& input,
                                    std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits,
                                    const ::c10d::AllToAllOptions& opts) {
  return translating([&] {
    return launch(prepare_all_to_all_single(site(), output, input, output_splits, input_splits),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr NativeEngine::alltoall(Tensors& outputs, Tensors& inputs,
                               const ::c10d::AllToAllOptions& opts) {
  return translating([&] {
    return launch(prepare_all_to_all(site(), outputs, inputs), opts.timeout, opts.asyncOp);
  });
}

}  // namespace fastcomm
