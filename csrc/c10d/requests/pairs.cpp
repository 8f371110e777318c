// Requests whose sizes are known in pairs (coll/messages.h).
#include <ATen/ATen.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "c10d/requests/forms.h"
#include "core/error.h"

namespace fastcomm {

namespace {

/// Bytes of the part for each rank.
std::vector<uint64_t> part_bytes(const Buffer& buffer, const at::Tensor& tensor,
                                 c10::ArrayRef<int64_t> splits, int size) {
  std::vector<uint64_t> bytes;
  const auto rows = splits.empty() ? size : tensor.size(0);
  const uint64_t row = rows == 0 ? 0 : buffer.bytes() / static_cast<uint64_t>(rows);
  for (int peer = 0; peer < size; ++peer) {
    bytes.push_back(row * (splits.empty() ? 1 : static_cast<uint64_t>(splits[peer])));
  }
  return bytes;
}

void add_single(const Site& site, const Request& request, const at::Tensor& input, Calls& calls) {
  Prepared& made = calls.emplace_back(OpKind::kAllToAllSingle, site.home);
  const at::Tensor& output = request.outputs[0];
  check_dtype(made.name(), input, "input", output, "output");
  const Buffer from = made.read(input), to = made.write(output);
  const auto sends = part_bytes(from, input, request.input_splits, site.size);
  const auto receives = part_bytes(to, output, request.output_splits, site.size);
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
    calls.pop_back();
    return add_single(site, request, input.clone(), calls);
  }
  made.of(from);
  made.call.count = 0;  // sizes differ between ranks
  made.exchange(std::move(messages), site.rank);
}

void add_each(const Site& site, const Request& request, at::TensorList inputs, Calls& calls) {
  Prepared& made = calls.emplace_back(OpKind::kAllToAll, site.home);
  auto messages = std::make_shared<Messages>(site.size);
  for (size_t peer = 0; peer < inputs.size(); ++peer) {
    const Buffer from = made.read(inputs[peer]), to = made.write(request.outputs[peer]);
    messages->sends[peer] = {static_cast<const char*>(from.data()), from.bytes()};
    messages->receives[peer] = {static_cast<char*>(to.data()), to.bytes()};
  }
  if (!apart(*messages, site.rank)) {
    calls.pop_back();
    return add_each(site, request, clones(inputs), calls);
  }
  made.of(made.held.inputs[0]);
  made.call.count = 0;
  made.exchange(std::move(messages), site.rank);
}

}  // namespace

void add_all_to_all_single(const Site& site, const Request& request, Calls& calls) {
  ::c10d::checkSplitSizes(request.input_splits.vec(), request.inputs[0], site.size);
  ::c10d::checkSplitSizes(request.output_splits.vec(), request.outputs[0], site.size);
  add_single(site, request, request.inputs[0], calls);
}

void add_all_to_all(const Site& site, const Request& request, Calls& calls) {
  const auto size = static_cast<size_t>(site.size);
  FC_CHECK(request.outputs.size() == size && request.inputs.size() == size,
           "all_to_all: ", request.outputs.size(), " outputs and ", request.inputs.size(),
           " inputs for a group of ", size, " ranks");
  for (const at::TensorList list : {request.inputs, request.outputs}) {
    for (const at::Tensor& each : list) {
      check_dtype("all_to_all", request.inputs[0], "first input", each, "other tensor");
    }
  }
  add_each(site, request, request.inputs, calls);
}

void add_all_gather_uneven(const Site& site, const at::Tensor& input, const Tensors& outputs,
                           Calls& calls) {
  Prepared& made = calls.emplace_back(OpKind::kAllGatherUneven, site.home);
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
  if (!apart(*messages, site.rank)) {
    calls.pop_back();
    return add_all_gather_uneven(site, input.clone(), outputs, calls);
  }
  made.exchange(std::move(messages), site.rank);
}

}  // namespace fastcomm
