#include "c10d/delegate_engine.h"

#include "c10d/exception.h"

namespace fastcomm {

DelegateEngine::DelegateEngine(BackendPtr inner, c10::intrusive_ptr<Options> options,
                               Continuations::Ptr continuations)
    : Engine(inner->getRank(), inner->getSize(), std::move(options), std::move(continuations)),
      inner_(std::move(inner)) {}

std::exception_ptr DelegateEngine::failure() const { return nullptr; }

void DelegateEngine::fail(const std::exception_ptr&) { inner_->abort(); }

void DelegateEngine::leave(const std::string&) { inner_->shutdown(); }

void DelegateEngine::abort() { inner_->abort(); }

Engine::WorkPtr DelegateEngine::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  return inner_->allreduce(tensors, opts);
}

Engine::WorkPtr DelegateEngine::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) {
  return inner_->broadcast(tensors, opts);
}

Engine::WorkPtr DelegateEngine::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  return inner_->reduce(tensors, opts);
}

Engine::WorkPtr DelegateEngine::barrier(const ::c10d::BarrierOptions& opts) {
  return inner_->barrier(opts);
}

void DelegateEngine::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  return inner_->monitoredBarrier(opts, wait_all_ranks);
}

Engine::WorkPtr DelegateEngine::allgather(TensorLists& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) {
  return inner_->allgather(outputs, inputs, opts);
}

Engine::WorkPtr DelegateEngine::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const ::c10d::AllgatherOptions& opts) {
  return inner_->_allgather_base(output, input, opts);
}

Engine::WorkPtr DelegateEngine::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                               const ::c10d::ReduceScatterOptions& opts) {
  return inner_->reduce_scatter(outputs, inputs, opts);
}

Engine::WorkPtr DelegateEngine::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const ::c10d::ReduceScatterOptions& opts) {
  return inner_->_reduce_scatter_base(output, input, opts);
}

Engine::WorkPtr DelegateEngine::gather(TensorLists& outputs, Tensors& inputs,
                                       const ::c10d::GatherOptions& opts) {
  return inner_->gather(outputs, inputs, opts);
}

Engine::WorkPtr DelegateEngine::scatter(Tensors& outputs, TensorLists& inputs,
                                        const ::c10d::ScatterOptions& opts) {
  return inner_->scatter(outputs, inputs, opts);
}

Engine::WorkPtr DelegateEngine::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits,
                                              const ::c10d::AllToAllOptions& opts) {
  return inner_->alltoall_base(output, input, output_splits, input_splits, opts);
}

Engine::WorkPtr DelegateEngine::alltoall(Tensors& outputs, Tensors& inputs,
                                         const ::c10d::AllToAllOptions& opts) {
  return inner_->alltoall(outputs, inputs, opts);
}

Engine::WorkPtr DelegateEngine::allreduce_coalesced(Tensors& tensors,
                                                    const ::c10d::AllreduceCoalescedOptions& opts) {
  return inner_->allreduce_coalesced(tensors, opts);
}

Engine::WorkPtr DelegateEngine::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                    const ::c10d::AllgatherOptions& opts) {
  return inner_->allgather_coalesced(outputs, inputs, opts);
}

Engine::WorkPtr DelegateEngine::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& opts) {
  return inner_->allgather_into_tensor_coalesced(outputs, inputs, opts);
}

Engine::WorkPtr DelegateEngine::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& opts) {
  return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

void DelegateEngine::startCoalescing() { return inner_->startCoalescing(); }

Engine::WorkPtr DelegateEngine::endCoalescing() { return inner_->endCoalescing(); }

Engine::WorkPtr DelegateEngine::allreduce_sparse(Tensors& tensors,
                                                 const ::c10d::AllreduceOptions& opts) {
  return inner_->allreduce_sparse(tensors, opts);
}

Engine::WorkPtr DelegateEngine::send(Tensors& tensors, int peer, int tag) {
  return translating([&] {
    check_peer("send", peer, getRank(), getSize());
    return inner_->send(tensors, peer, tag);
  });
}

Engine::WorkPtr DelegateEngine::recv(Tensors& tensors, int peer, int tag) {
  return translating([&] {
    check_peer("recv", peer, getRank(), getSize());
    return inner_->recv(tensors, peer, tag);
  });
}

Engine::WorkPtr DelegateEngine::recvAnysource(Tensors& tensors, int tag) {
  return inner_->recvAnysource(tensors, tag);
}

}  // namespace fastcomm
