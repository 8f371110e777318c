#include "c10d/calls/pairs.h"

#include <memory>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "core/error.h"

namespace fastcomm {

using ::c10d::OpType;

namespace {

/// Bytes of the part for each rank.
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

}  // namespace

Prepared prepare_all_to_all_single(const Site& site, const at::Tensor& output,
                                   const at::Tensor& input,
                                   const std::vector<int64_t>& output_splits,
                                   const std::vector<int64_t>& input_splits) {
  ::c10d::checkSplitSizes(input_splits, input, site.size);
  ::c10d::checkSplitSizes(output_splits, output, site.size);
  Prepared made(OpKind::kAllToAllSingle, OpType::ALLTOALL_BASE, site.place);
  check_dtype(made.name(), input, "input", output, "output");
  const Buffer from = made.read(input), to = made.write(output);
  const auto sends = part_bytes(from, input, input_splits, site.size);
  const auto receives = part_bytes(to, output, output_splits, site.size);
  auto messages = std::make_shared<Messages>(site.size);
  const char* source = static_cast<const char*>(from.data());
  char* target = static_cast<char*>(to.data());
  for (int peer = 0; peer < site.size; ++peer) {
    messages->sends[peer] = {source, sends[peer]};
    messages->receives[peer] = {target, receives[peer]};
    source += sends[peer];
    target += receives[peer];
  }
  if (!apart(*messages, site.rank)) {
    return prepare_all_to_all_single(site, output, input.clone(), output_splits, input_splits);
  }
  made.of(from);
  made.call.count = 0;  // sizes differ between ranks
  made.exchange(std::move(messages), site.rank);
  made.payload.value = {output};
  return made;
}

Prepared prepare_all_to_all(const Site& site, const Tensors& outputs, const Tensors& inputs) {
  const auto size = static_cast<size_t>(site.size);
  FC_CHECK(outputs.size() == size && inputs.size() == size, "all_to_all: ", outputs.size(),
           " outputs and ", inputs.size(), " inputs for a group of ", size, " ranks");
  for (const Tensors* list : {&inputs, &outputs}) {
    for (const at::Tensor& each : *list) {
      check_dtype("all_to_all", inputs[0], "first input", each, "other tensor");
    }
  }
  Prepared made(OpKind::kAllToAll, OpType::ALLTOALL, site.place);
  auto messages = std::make_shared<Messages>(site.size);
  for (size_t peer = 0; peer < size; ++peer) {
    const Buffer from = made.read(inputs[peer]), to = made.write(outputs[peer]);
    messages->sends[peer] = {static_cast<const char*>(from.data()), from.bytes()};
    messages->receives[peer] = {static_cast<char*>(to.data()), to.bytes()};
  }
  if (!apart(*messages, site.rank)) return prepare_all_to_all(site, outputs, clones(inputs));
  made.of(made.payload.inputs[0]);
  made.call.count = 0;
  made.exchange(std::move(messages), site.rank);
  made.payload.value = outputs;
  return made;
}

Prepared prepare_all_gather_uneven(const Site& site, const Tensors& outputs,
                                   const at::Tensor& input) {
  Prepared made(OpKind::kAllGatherUneven, OpType::ALLGATHER, site.place);
  made.compare(outputs);
  const Buffer own = made.read(input);
  made.call.dtype = own.dtype();
  auto messages = std::make_shared<Messages>(site.size);
  messages->same_for_all = true;
  for (size_t peer = 0; peer < outputs.size(); ++peer) {
    const Buffer output = made.write(outputs[peer]);
    messages->sends[peer] = {static_cast<const char*>(own.data()), own.bytes()};
    messages->receives[peer] = {static_cast<char*>(output.data()), output.bytes()};
  }
  if (!apart(*messages, site.rank)) return prepare_all_gather_uneven(site, outputs, input.clone());
  made.exchange(std::move(messages), site.rank);
  made.payload.value = outputs;
  return made;
}

}  // namespace fastcomm
