// gather, scatter, all_to_all, all_to_all_single: messages whose sizes are known in pairs.
#include <memory>
#include <torch/csrc/distributed/c10d/Utils.hpp>

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

/// Bytes of the part for each rank; splits are rows, or empty for equal parts.
std::vector<uint64_t> part_bytes(const Buffer& buffer, const at::Tensor& tensor,
                                 const std::vector<int64_t>& splits, int size) {
  std::vector<uint64_t> bytes;
  const auto rows = splits.empty() ? size : tensor.size(0);
  const uint64_t row = rows == 0 ? 0 : buffer.bytes() / static_cast<uint64_t>(rows);
  for (int peer = 0; peer < size; ++peer) {
    bytes.push_back(row * (splits.empty() ? 1 : static_cast<uint64_t>(splits[peer])));
  }
  return bytes;
}

/// One tensor with a part for each rank, to one with a part from each.
Prepared prepare_single(const at::Tensor& output, const at::Tensor& input,
                        const std::vector<int64_t>& output_splits,
                        const std::vector<int64_t>& input_splits, int rank, int size) {
  Prepared made(OpKind::kAllToAllSingle, OpType::ALLTOALL_BASE);
  const Buffer from = made.read(input), to = made.write(output);
  const auto sends = part_bytes(from, input, input_splits, size);
  const auto receives = part_bytes(to, output, output_splits, size);
  auto messages = std::make_shared<Messages>(size);
  const char* source = static_cast<const char*>(from.data());
  char* target = static_cast<char*>(to.data());
  for (int peer = 0; peer < size; ++peer) {
    messages->sends[peer] = {source, sends[peer]};
    messages->receives[peer] = {target, receives[peer]};
    source += sends[peer];
    target += receives[peer];
  }
  if (!apart(*messages, rank)) {
    return prepare_single(output, input.clone(), output_splits, input_splits, rank, size);
  }
  made.of(from);
  made.call.count = 0;  // sizes differ between ranks
  made.exchange(std::move(messages), rank);
  made.payload.value = {output};
  return made;
}

/// A tensor to each rank, and one from each.
Prepared prepare_lists(const Tensors& outputs, const Tensors& inputs, int rank) {
  Prepared made(OpKind::kAllToAll, OpType::ALLTOALL);
  auto messages = std::make_shared<Messages>(static_cast<int>(inputs.size()));
  for (size_t peer = 0; peer < inputs.size(); ++peer) {
    messages->sends[peer] = sent(made.read(inputs[peer]));
    messages->receives[peer] = expected(made.write(outputs[peer]));
  }
  if (!apart(*messages, rank)) return prepare_lists(outputs, clones(inputs), rank);
  made.of(made.payload.inputs[0]);
  made.call.count = 0;
  made.exchange(std::move(messages), rank);
  made.payload.value = outputs;
  return made;
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
    ::c10d::checkSplitSizes(input_splits, input, getSize());
    ::c10d::checkSplitSizes(output_splits, output, getSize());
    check_dtype("all_to_all_single", input, "input", output, "output");
    return launch(prepare_single(output, input, output_splits, input_splits, getRank(), getSize()),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr NativeEngine::alltoall(Tensors& outputs, Tensors& inputs,
                               const ::c10d::AllToAllOptions& opts) {
  return translating([&] {
    const auto size = static_cast<size_t>(getSize());
    FC_CHECK(outputs.size() == size && inputs.size() == size, "all_to_all: ", outputs.size(),
             " outputs and ", inputs.size(), " inputs for a group of ", size, " ranks");
    for (const Tensors* list : {&inputs, &outputs}) {
      for (const at::Tensor& each : *list) {
        check_dtype("all_to_all", inputs[0], "first input", each, "other tensor");
      }
    }
    return launch(prepare_lists(outputs, inputs, getRank()), opts.timeout, opts.asyncOp);
  });
}

}  // namespace fastcomm
