// Operations over several tensors. A list of small ones is one message: joined before, taken apart after.
// Large ones are messages of their own, one after the other: joining them would touch new memory, and
// copy everything twice more. Each header covers the whole list, so that no memory is touched where
// lists differ.
#include <ATen/ATen.h>

#include <cstring>
#include <numeric>

#include "c10d/calls/even.h"
#include "c10d/native/joined_tensors.h"
#include "c10d/native/launch.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = NativeEngine::WorkPtr;

namespace {

/// Raises Error(kInvalidArgument) unless there is one.
const at::Tensor& first_of(const char* operation, const Tensors& tensors) {
  FC_CHECK(!tensors.empty(), operation, ": takes at least one tensor");
  return tensors[0];
}

/// Raises Error unless all tensors are dense and of the first one's dtype.
void require_alike(const char* operation, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    require_dense(operation, tensor);
    check_dtype(operation, tensors[0], "first tensor", tensor, "other one");
  }
}

/// An all_gather of a list: `parts` names the outputs of each rank.
Prepared prepare_gather(OpKind kind, const Tensors& inputs, const Tensors& outputs, int size) {
  Prepared made(kind, OpType::ALLGATHER_COALESCED);
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

/// The least bytes of a tensor, on average, in a list that is not joined. All ranks know the sizes.
constexpr uint64_t kLarge = 256 * 1024;

bool large(const Tensors& tensors) {
  const auto add = [](uint64_t sum, const at::Tensor& tensor) { return sum + tensor.nbytes(); };
  return std::accumulate(tensors.begin(), tensors.end(), uint64_t{0}, add) >=
         kLarge * tensors.size();
}

void copy(const void* from, void* to, uint64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

WorkPtr NativeEngine::launch_each(std::vector<Prepared> calls, const Tensors& value,
                                  Milliseconds timeout, bool async) {
  calls.back().payload.value =
      value;  // operations end in order: the last one's work stands for all
  WorkPtr work;
  for (Prepared& call : calls) {
    work = launch(std::move(call), timeout, async);
    if (work != nullptr && work->isCompleted() && !work->isSuccess()) break;
  }
  return work;
}

WorkPtr NativeEngine::allreduce_coalesced(Tensors& tensors,
                                          const ::c10d::AllreduceCoalescedOptions& opts) {
  return translating([&] {
    Prepared made(OpKind::kAllReduceCoalesced, OpType::ALLREDUCE_COALESCED);
    made.reduce(opts.reduceOp, first_of(made.name(), tensors));
    for (const at::Tensor& tensor : tensors) require_writable(made.name(), tensor);
    require_alike(made.name(), tensors);
    if (large(tensors)) {
      return launch_each(prepare_all_reduce_each(site(), tensors, opts.reduceOp), tensors,
                         opts.timeout, opts.asyncOp);
    }
    made.compare(tensors);
    const JoinedTensors joined(tensors);
    made.call.dtype = joined.buffers()[0].dtype();
    made.call.count = joined.bytes() / dtype_size(made.call.dtype);
    made.call.input = made.call.output = joined.data();
    made.payload.settle = [joined] { joined.write_back(); };
    made.payload.value = made.payload.shown = tensors;
    return launch(std::move(made), opts.timeout, opts.asyncOp);
  });
}

WorkPtr NativeEngine::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    constexpr const char* kName = "all_gather_coalesced";
    first_of(kName, inputs);
    const TensorLists targets = checked_lists(site(), outputs, inputs);
    Tensors all;
    for (const Tensors& list : outputs) all.insert(all.end(), list.begin(), list.end());
    if (large(inputs)) {
      return launch_each(
          prepare_all_gather_each(site(), OpKind::kAllGatherCoalesced, inputs, targets), all,
          opts.timeout, opts.asyncOp);
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

WorkPtr NativeEngine::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    constexpr const char* kName = "all_gather_into_tensor_coalesced";
    first_of(kName, inputs);
    const TensorLists targets = checked_wholes(site(), kName, outputs, inputs);
    if (large(inputs)) {
      return launch_each(
          prepare_all_gather_each(site(), OpKind::kAllGatherIntoTensorCoalesced, inputs, targets),
          outputs, opts.timeout, opts.asyncOp);
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

WorkPtr NativeEngine::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    constexpr const char* kName = "reduce_scatter_tensor_coalesced";
    check_parts_of_all(site(), kName, outputs, inputs);
    Prepared made(OpKind::kReduceScatterTensorCoalesced, OpType::REDUCE_SCATTER);
    made.reduce(opts.reduceOp, first_of(kName, outputs));
    require_alike(kName, outputs);
    if (large(outputs)) {
      return launch_each(prepare_reduce_scatter_each(site(), outputs, inputs, opts.reduceOp),
                         outputs, opts.timeout, opts.asyncOp);
    }
    made.compare(outputs);
    const JoinedTensors sums(outputs, /*filled=*/false);
    made.call.dtype = sums.buffers()[0].dtype();
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
