// What has no native schedule yet: handed to the stock group unchanged.

#include "c10d/backend.h"

namespace fastcomm {

using WorkPtr = FastcommBackend::WorkPtr;

WorkPtr FastcommBackend::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  return stock_->allreduce_sparse(tensors, opts);
}

WorkPtr FastcommBackend::allreduce_coalesced(Tensors& tensors,
                                             const ::c10d::AllreduceCoalescedOptions& opts) {
  return stock_->allreduce_coalesced(tensors, opts);
}

WorkPtr FastcommBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  return stock_->reduce(tensors, opts);
}

WorkPtr FastcommBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const ::c10d::AllgatherOptions& opts) {
  return stock_->_allgather_base(output, input, opts);
}

WorkPtr FastcommBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                             const ::c10d::AllgatherOptions& opts) {
  return stock_->allgather_coalesced(outputs, inputs, opts);
}

WorkPtr FastcommBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::AllgatherOptions& opts) {
  return stock_->allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr FastcommBackend::gather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::GatherOptions& opts) {
  return stock_->gather(outputs, inputs, opts);
}

WorkPtr FastcommBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                 const ::c10d::ScatterOptions& opts) {
  return stock_->scatter(outputs, inputs, opts);
}

WorkPtr FastcommBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                        const ::c10d::ReduceScatterOptions& opts) {
  return stock_->reduce_scatter(outputs, inputs, opts);
}

WorkPtr FastcommBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const ::c10d::ReduceScatterOptions& opts) {
  return stock_->_reduce_scatter_base(output, input, opts);
}

WorkPtr FastcommBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::ReduceScatterOptions& opts) {
  return stock_->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr FastcommBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const ::c10d::AllToAllOptions& opts) {
  return stock_->alltoall_base(output, input, output_splits, input_splits, opts);
}

WorkPtr FastcommBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                  const ::c10d::AllToAllOptions& opts) {
  return stock_->alltoall(outputs, inputs, opts);
}

WorkPtr FastcommBackend::send(Tensors& tensors, int peer, int tag) {
  return stock_->send(tensors, peer, tag);
}

WorkPtr FastcommBackend::recv(Tensors& tensors, int peer, int tag) {
  return stock_->recv(tensors, peer, tag);
}

WorkPtr FastcommBackend::recvAnysource(Tensors& tensors, int tag) {
  return stock_->recvAnysource(tensors, tag);
}

void FastcommBackend::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  stock_->monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace fastcomm
