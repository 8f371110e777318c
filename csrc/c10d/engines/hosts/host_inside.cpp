#include "c10d/engines/hosts/host_inside.h"

#include <utility>

namespace fastcomm {

void HostInside::reduce(HostCall& call, const PartialSum& sum, const void* input, uint64_t count,
                        void* output, int root) {
  Call step;
  step.kind = OpKind::kReduce;
  step.root = root;
  step.dtype = sum.partial;
  step.op = sum.op;
  step.factor = sum.factor;
  step.count = count;
  step.input = input;
  step.output = rank() == root ? output : nullptr;
  run(call, std::move(step));
}

void HostInside::reduce_scatter(HostCall& call, const PartialSum& sum,
                                std::vector<const void*> inputs, uint64_t count, void* output) {
  Call step;
  step.kind = OpKind::kReduceScatterTensor;
  step.dtype = sum.partial;
  step.op = sum.op;
  step.factor = sum.factor;
  step.count = count;
  step.inputs = std::move(inputs);
  step.output = output;
  run(call, std::move(step));
}

void HostInside::all_gather(HostCall& call, DType type, const void* input, uint64_t count,
                            std::vector<void*> outputs) {
  Call step;
  step.kind = OpKind::kAllGatherIntoTensor;
  step.dtype = type;
  step.count = count;
  step.input = input;
  step.outputs = std::move(outputs);
  run(call, std::move(step));
}

void HostInside::broadcast(HostCall& call, DType type, void* data, uint64_t count, int root) {
  Call step;
  step.kind = OpKind::kBroadcast;
  step.root = root;
  step.dtype = type;
  step.count = count;
  step.input = step.output = data;
  run(call, std::move(step));
}

void HostInside::exchange(HostCall& call, const std::shared_ptr<Messages>& messages) {
  Call step;
  step.kind = OpKind::kAllToAll;
  step.balance = messages->balance(rank());
  step.messages = messages;
  run(call, std::move(step));
}

void HostInside::barrier(HostCall& call) {
  Call step;
  step.kind = OpKind::kBarrier;
  run(call, std::move(step));
}

void HostInside::run(HostCall& call, Call step) {
  constexpr Milliseconds kNoTimeout{0};  // a rank of this host may wait for another host
  step.part_of = &call.call;
  step.signature = ++call.steps;
  step.detail = call.call.detail;
  const auto done = ranks_->run(step, kNoTimeout, call.look);
  if (const auto error = done->error()) std::rethrow_exception(error);
}

}  // namespace fastcomm
