// Operations over several tensors, each list as one message: joined before, taken apart after.
#include <ATen/ops/empty.h>

#include <cstring>

#include "c10d/joined_tensors.h"
#include "c10d/launch.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = FastcommBackend::WorkPtr;

namespace {

const at::Tensor& first_of(const char* operation, const Tensors& tensors) {
  FC_CHECK(!tensors.empty(), operation, ": takes at least one tensor");
  return tensors[0];
}

/// The first tensor's type. Raises Error(kInvalidArgument) unless it is that of all.
DType one_dtype(const char* operation, const Tensors& tensors, const JoinedTensors& joined) {
  for (const at::Tensor& tensor : tensors) {
    check_dtype(operation, tensors[0], "first tensor", tensor, "other one");
  }
  return joined.buffers()[0].dtype();
}

/// An all_gather of a list: `parts` names the outputs of each rank.
Prepared prepare_gather(OpKind kind, const Tensors& inputs, const Tensors& outputs, int size) {
  Prepared made(kind, OpType::ALLGATHER_COALESCED);
  first_of(made.name(), inputs);
  made.compare(inputs);
  const JoinedTensors own(inputs);
  const auto total = static_cast<int64_t>(own.bytes());
  const at::Tensor all = at::empty({total * size}, at::TensorOptions().dtype(at::kByte));
  made.call.dtype = DType::kOther;
  made.call.count = own.bytes();
  made.call.input = own.data();
  for (int peer = 0; peer < size; ++peer) {
    made.call.outputs.push_back(static_cast<char*>(all.data_ptr()) + peer * total);
  }
  for (const at::Tensor& output : outputs) made.write(output);
  made.payload.settle = [own, all] {};  // alive
  made.payload.value = outputs;
  made.payload.shown = inputs;
  return made;
}

void copy(const void* from, void* to, uint64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

WorkPtr FastcommBackend::allreduce_coalesced(Tensors& tensors,
                                             const ::c10d::AllreduceCoalescedOptions& opts) {
  return translating([&] {
    if (whole_ != nullptr) return whole_->allreduce_coalesced(tensors, opts);
    Prepared made(OpKind::kAllReduceCoalesced, OpType::ALLREDUCE_COALESCED);
    made.reduce(opts.reduceOp, first_of(made.name(), tensors));
    for (const at::Tensor& tensor : tensors) require_writable(made.name(), tensor);
    made.compare(tensors);
    const JoinedTensors joined(tensors);
    made.call.dtype = one_dtype(made.name(), tensors, joined);
    made.call.count = joined.bytes() / dtype_size(made.call.dtype);
    made.call.input = made.call.output = joined.data();
    made.payload.settle = [joined] { joined.write_back(); };
    made.payload.value = made.payload.shown = tensors;
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

WorkPtr FastcommBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                             const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    if (whole_ != nullptr) return whole_->allgather_coalesced(outputs, inputs, opts);
    constexpr const char* kName = "all_gather_coalesced";
    FC_CHECK(static_cast<int>(outputs.size()) == getSize(), kName, ": ", outputs.size(),
             " lists of outputs for a group of ", getSize(), " ranks");
    Tensors all;
    for (const Tensors& list : outputs) {
      FC_CHECK(list.size() == inputs.size(), kName, ": a list of ", list.size(), " outputs for ",
               inputs.size(), " inputs");
      for (size_t i = 0; i < list.size(); ++i) {
        check_parts(kName, list[i], "output", inputs[i], "input", 1);
        all.push_back(list[i]);
      }
    }
    Prepared made = prepare_gather(OpKind::kAllGatherCoalesced, inputs, all, getSize());
    made.payload.settle = [keep = made.payload.settle, from = made.call.outputs,
                           to = made.payload.outputs, count = inputs.size()] {
      for (size_t i = 0; i < to.size(); i += count) {
        const char* part = static_cast<const char*>(from[i / count]);
        for (size_t k = i; k < i + count; ++k) {
          copy(part, to[k].data(), to[k].bytes());
          part += to[k].bytes();
        }
      }
    };
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

WorkPtr FastcommBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    if (whole_ != nullptr) return whole_->allgather_into_tensor_coalesced(outputs, inputs, opts);
    constexpr const char* kName = "all_gather_into_tensor_coalesced";
    FC_CHECK(outputs.size() == inputs.size(), kName, ": ", outputs.size(), " outputs for ",
             inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_parts(kName, outputs[i], "output", inputs[i], "input", getSize());
    }
    Prepared made =
        prepare_gather(OpKind::kAllGatherIntoTensorCoalesced, inputs, outputs, getSize());
    made.payload.settle = [keep = made.payload.settle, from = made.call.outputs,
                           to = made.payload.outputs, size = static_cast<size_t>(getSize())] {
      for (size_t rank = 0; rank < size; ++rank) {
        const char* part = static_cast<const char*>(from[rank]);
        for (const Buffer& output : to) {
          const uint64_t bytes = output.bytes() / size;
          copy(part, static_cast<char*>(output.data()) + rank * bytes, bytes);
          part += bytes;
        }
      }
    };
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

WorkPtr FastcommBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    if (whole_ != nullptr) return whole_->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
    constexpr const char* kName = "reduce_scatter_tensor_coalesced";
    FC_CHECK(outputs.size() == inputs.size(), kName, ": ", outputs.size(), " outputs for ",
             inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_parts(kName, inputs[i], "input", outputs[i], "output", getSize());
      require_dense(kName, inputs[i]);
      require_writable(kName, outputs[i]);
    }
    Prepared made(OpKind::kReduceScatterTensorCoalesced, OpType::REDUCE_SCATTER);
    made.reduce(opts.reduceOp, first_of(kName, outputs));
    made.compare(outputs);
    const JoinedTensors sums(outputs, /*filled=*/false);
    made.call.dtype = one_dtype(kName, outputs, sums);
    made.call.count = sums.bytes() / dtype_size(made.call.dtype);
    // Rank by rank, and there tensor by tensor.
    const at::Tensor parts = at::empty({static_cast<int64_t>(sums.bytes()) * getSize()},
                                       at::TensorOptions().dtype(at::kByte));
    auto* at = static_cast<char*>(parts.data_ptr());
    std::vector<Buffer> wholes;
    for (const at::Tensor& input : inputs) wholes.emplace_back(input);
    for (int rank = 0; rank < getSize(); ++rank) {
      made.call.inputs.push_back(at);
      for (const Buffer& whole : wholes) {
        const uint64_t bytes = whole.bytes() / static_cast<uint64_t>(getSize());
        copy(static_cast<const char*>(whole.data()) + static_cast<uint64_t>(rank) * bytes, at,
             bytes);
        at += bytes;
      }
    }
    made.call.output = sums.data();
    made.payload.settle = [sums, parts] { sums.write_back(); };
    made.payload.value = outputs;
    made.payload.shown = inputs;
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

}  // namespace fastcomm
