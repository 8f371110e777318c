#include "c10d/edge/direct_call.h"

#include <array>

#include "c10d/requests/plain.h"

namespace fastcomm {
namespace {

using ::c10d::OpType;
using Torch = ::c10d::ReduceOp;

template <class Options>
Options with(Milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

bool is_reduction(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatterTensor;
}

OpType type_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return OpType::ALLREDUCE;
    case OpKind::kBroadcast:
      return OpType::BROADCAST;
    case OpKind::kAllGatherIntoTensor:
      return OpType::_ALLGATHER_BASE;
    case OpKind::kReduceScatterTensor:
      return OpType::_REDUCE_SCATTER_BASE;
    case OpKind::kAllToAllSingle:
      return OpType::ALLTOALL_BASE;
    case OpKind::kBarrier:
      return OpType::BARRIER;
    default:
      TORCH_CHECK_VALUE(false, op_kind_name(kind), " cannot be called this way");
  }
}

}  // namespace

::c10d::ReduceOp reduction_named(const std::string& name) {
  using Named = std::pair<const char*, Torch::RedOpType>;
  static constexpr std::array<Named, 8> kNames{{{"sum", Torch::SUM},
                                                {"avg", Torch::AVG},
                                                {"max", Torch::MAX},
                                                {"min", Torch::MIN},
                                                {"product", Torch::PRODUCT},
                                                {"band", Torch::BAND},
                                                {"bor", Torch::BOR},
                                                {"bxor", Torch::BXOR}}};
  for (const auto& [known, op] : kNames) {
    if (name == known) return op;
  }
  TORCH_CHECK_VALUE(false,
                    "op is 'sum', 'avg', 'max', 'min', 'product', 'band', 'bor' or 'bxor', not '",
                    name, "'");
}

WorkPtr DirectCall::issue(FastcommBackend& backend, bool async) const {
  const auto short_call = async ? std::nullopt : short_call_of(kind, outputs, op);
  if (short_call) {
    const auto type = outputs.empty() ? at::ScalarType::Undefined : outputs[0].scalar_type();
    if (backend.run(*short_call, type, timeout)) return nullptr;
  }
  Request request;
  request.kind = kind;
  request.type = type_of(kind);
  request.timeout = timeout;
  request.async = async;
  request.inputs = inputs;
  request.outputs = outputs;
  if (is_reduction(kind)) request.op = &op;
  request.root = root;
  request.input_splits = input_splits;
  request.output_splits = output_splits;
  return backend.submit(request, [this](::c10d::Backend& other) { return issue_to(other); });
}

WorkPtr DirectCall::issue_to(::c10d::Backend& other) const {
  Tensors tensors = outputs.vec();
  at::Tensor input = inputs.empty() ? at::Tensor() : inputs[0];
  at::Tensor output = outputs.empty() ? at::Tensor() : outputs[0];
  switch (kind) {
    case OpKind::kAllReduce: {
      auto options = with<::c10d::AllreduceOptions>(timeout);
      options.reduceOp = op;
      return other.allreduce(tensors, options);
    }
    case OpKind::kBroadcast: {
      auto options = with<::c10d::BroadcastOptions>(timeout);
      options.rootRank = root;
      return other.broadcast(tensors, options);
    }
    case OpKind::kAllGatherIntoTensor:
      return other._allgather_base(output, input, with<::c10d::AllgatherOptions>(timeout));
    case OpKind::kReduceScatterTensor: {
      auto options = with<::c10d::ReduceScatterOptions>(timeout);
      options.reduceOp = op;
      return other._reduce_scatter_base(output, input, options);
    }
    case OpKind::kAllToAllSingle: {
      std::vector<int64_t> out = output_splits.vec(), in = input_splits.vec();
      return other.alltoall_base(output, input, out, in, with<::c10d::AllToAllOptions>(timeout));
    }
    default:
      return other.barrier(with<::c10d::BarrierOptions>(timeout));
  }
}

PreparedCall::PreparedCall(c10::intrusive_ptr<::c10d::Backend> backend, DirectCall call,
                           Tensors inputs, Tensors outputs, std::vector<int64_t> input_splits,
                           std::vector<int64_t> output_splits)
    : backend_(std::move(backend)),
      own_(dynamic_cast<FastcommBackend*>(backend_.get())),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      input_splits_(std::move(input_splits)),
      output_splits_(std::move(output_splits)),
      call_(std::move(call)) {
  type_of(call_.kind);
  call_.inputs = inputs_;
  call_.outputs = outputs_;
  call_.input_splits = input_splits_;
  call_.output_splits = output_splits_;
}

void PreparedCall::run() {
  const WorkPtr work = issue(/*async=*/false);
  if (work != nullptr) work->wait();
}

void PreparedCall::start() {
  TORCH_CHECK_VALUE(!started_, op_kind_name(call_.kind),
                    ": the call was started before, and not waited for");
  work_ = issue(/*async=*/true);
  started_ = true;
}

void PreparedCall::wait() {
  TORCH_CHECK_VALUE(started_, op_kind_name(call_.kind), ": the call was not started");
  started_ = false;
  const WorkPtr work = std::move(work_);
  if (work != nullptr) work->wait();
}

}  // namespace fastcomm
