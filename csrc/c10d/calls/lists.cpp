// Calls for each tensor of a list (calls/even.h).
#include <ATen/ATen.h>

#include "c10d/calls/even.h"
#include "core/error.h"

namespace fastcomm {

using ::c10d::OpType;

namespace {

/// Whether no call writes what another one reads or writes.
bool independent(const std::vector<Prepared>& calls) {
  const auto overlap = [](const Buffer& a, const Buffer& b) {
    const auto *one = static_cast<const char*>(a.data()),
               *other = static_cast<const char*>(b.data());
    return one < other + b.bytes() && other < one + a.bytes();
  };
  for (const Prepared& writer : calls) {
    for (const Prepared& other : calls) {
      if (&writer == &other) continue;
      for (const Buffer& written : writer.payload.outputs) {
        for (const auto* list : {&other.payload.inputs, &other.payload.outputs}) {
          for (const Buffer& buffer : *list) {
            if (overlap(written, buffer)) return false;
          }
        }
      }
    }
  }
  return true;
}

/// An all_reduce of each tensor; of copies, where tensors of the list overlap.
std::vector<Prepared> reduce_each(const Site& site, const Tensors& tensors,
                                  const ::c10d::ReduceOp& op, bool copied = false) {
  std::vector<Prepared> calls;
  for (const at::Tensor& tensor : tensors) {
    Prepared& made =
        calls.emplace_back(OpKind::kAllReduceCoalesced, OpType::ALLREDUCE_COALESCED, site.place);
    made.reduce(op, tensor);
    const at::Tensor target = copied ? tensor.clone(at::MemoryFormat::Contiguous) : tensor;
    const Buffer buffer = made.write(target);
    made.of(buffer);
    made.compare(tensors);
    made.call.input = made.call.output = buffer.data();
    made.payload.shown = {tensor};
    if (!copied) continue;
    made.payload.settle = [target, tensor] {
      const at::NoGradGuard no_grad;
      tensor.detach().copy_(target);
    };
  }
  return copied || independent(calls) ? std::move(calls) : reduce_each(site, tensors, op, true);
}

/// An all_gather of each input; `outputs` has, for each, one tensor or one a rank.
std::vector<Prepared> gather_each(const Site& site, OpKind kind, const Tensors& inputs,
                                  const std::vector<Tensors>& outputs, bool copied = false) {
  std::vector<Prepared> calls;
  bool separate = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Prepared& made = calls.emplace_back(kind, OpType::ALLGATHER_COALESCED, site.place);
    const Buffer part = made.read(copied ? inputs[i].clone() : inputs[i]);
    made.of(part);
    made.compare(inputs);
    made.call.input = part.data();
    for (const at::Tensor& output : outputs[i]) {
      auto* at = static_cast<char*>(made.write(output).data());
      for (int k = outputs[i].size() == 1 ? site.size : 1; k > 0; --k, at += part.bytes()) {
        made.call.outputs.push_back(at);
      }
    }
    separate = separate && apart(part.data(), made.call.outputs, part.bytes(), site.rank);
  }
  if (copied || (separate && independent(calls))) return calls;
  return gather_each(site, kind, inputs, outputs, true);
}

/// A reduce_scatter of each input.
std::vector<Prepared> scatter_each(const Site& site, const Tensors& outputs, const Tensors& inputs,
                                   const ::c10d::ReduceOp& op, bool copied = false) {
  std::vector<Prepared> calls;
  bool separate = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Prepared& made = calls.emplace_back(OpKind::kReduceScatterTensorCoalesced,
                                        OpType::REDUCE_SCATTER, site.place);
    made.reduce(op, outputs[i]);
    const Buffer sum = made.write(outputs[i]);
    made.of(sum);
    made.compare(outputs);
    made.call.output = sum.data();
    const Buffer whole = made.read(copied ? inputs[i].clone() : inputs[i]);
    const auto* part = static_cast<const char*>(whole.data());
    for (int k = 0; k < site.size; ++k, part += sum.bytes()) made.call.inputs.push_back(part);
    separate = separate && apart(sum.data(), made.call.inputs, sum.bytes(), site.rank);
  }
  if (copied || (separate && independent(calls))) return calls;
  return scatter_each(site, outputs, inputs, op, true);
}

}  // namespace

std::vector<Tensors> checked_lists(const Site& site, const std::vector<Tensors>& outputs,
                                   const Tensors& inputs) {
  constexpr const char* kName = "all_gather_coalesced";
  FC_CHECK(static_cast<int>(outputs.size()) == site.size, kName, ": ", outputs.size(),
           " lists of outputs for a group of ", site.size, " ranks");
  std::vector<Tensors> targets(inputs.size());
  for (const Tensors& list : outputs) {
    FC_CHECK(list.size() == inputs.size(), kName, ": a list of ", list.size(), " outputs for ",
             inputs.size(), " inputs");
    for (size_t i = 0; i < list.size(); ++i) {
      check_parts(kName, list[i], "output", inputs[i], "input", 1);
      targets[i].push_back(list[i]);
    }
  }
  return targets;
}

std::vector<Tensors> checked_wholes(const Site& site, const char* operation, const Tensors& outputs,
                                    const Tensors& inputs) {
  FC_CHECK(outputs.size() == inputs.size(), operation, ": ", outputs.size(), " outputs for ",
           inputs.size(), " inputs");
  std::vector<Tensors> targets;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_parts(operation, outputs[i], "output", inputs[i], "input", site.size);
    targets.push_back({outputs[i]});
  }
  return targets;
}

void check_parts_of_all(const Site& site, const char* operation, const Tensors& outputs,
                        const Tensors& inputs) {
  FC_CHECK(outputs.size() == inputs.size(), operation, ": ", outputs.size(), " outputs for ",
           inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_parts(operation, inputs[i], "input", outputs[i], "output", site.size);
    require_dense(operation, inputs[i]);
    require_writable(operation, outputs[i]);
  }
}

std::vector<Prepared> prepare_all_reduce_each(const Site& site, const Tensors& tensors,
                                              const ::c10d::ReduceOp& op) {
  return reduce_each(site, tensors, op);
}

std::vector<Prepared> prepare_all_gather_each(const Site& site, OpKind kind, const Tensors& inputs,
                                              const std::vector<Tensors>& outputs) {
  return gather_each(site, kind, inputs, outputs);
}

std::vector<Prepared> prepare_reduce_scatter_each(const Site& site, const Tensors& outputs,
                                                  const Tensors& inputs,
                                                  const ::c10d::ReduceOp& op) {
  return scatter_each(site, outputs, inputs, op);
}

}  // namespace fastcomm
