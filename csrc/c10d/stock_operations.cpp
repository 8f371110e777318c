// What has no native schedule yet: handed to the stock group unchanged, behind a meeting of the ranks
// where all of them take part.

#include "c10d/backend.h"
#include "c10d/exception.h"
#include "c10d/stock_call.h"

namespace fastcomm {

using ::c10d::OpType;
using Tensors = FastcommBackend::Tensors;
using TensorLists = FastcommBackend::TensorLists;
using WorkPtr = FastcommBackend::WorkPtr;

namespace {

const at::Tensor& only(const Tensors& tensors, const char* operation) {
  FC_CHECK(tensors.size() == 1, operation, ": takes one tensor a rank, not ", tensors.size());
  return tensors[0];
}

Tensors all_of(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Tensors joined(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

WorkPtr FastcommBackend::through_stock(const Call& call, const Tensors& outputs,
                                       Milliseconds timeout, bool async, OpType type,
                                       StockCall start) {
  const Milliseconds limit = timeout_or_default(timeout);
  Lane& lane = lanes_->here(limit);
  StockPtr engine = lane.stock(limit);
  if (lane.group() == nullptr || getSize() == 1) return start(*engine);
  return StockWork::start(lane.group(), call, limit, async, type, outputs, continuations_,
                          [engine, start = std::move(start)] { return start(*engine); });
}

WorkPtr FastcommBackend::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  return translating([&] {
    const at::Tensor& tensor = only(tensors, "all_reduce");
    Call call = stock_call(OpKind::kAllReduce, tensor, opts.reduceOp);
    return through_stock(call, tensors, opts.timeout, opts.asyncOp, OpType::ALLREDUCE,
                         [tensors, opts](::c10d::Backend& engine) mutable {
                           return engine.allreduce_sparse(tensors, opts);
                         });
  });
}

WorkPtr FastcommBackend::allreduce_coalesced(Tensors& tensors,
                                             const ::c10d::AllreduceCoalescedOptions& opts) {
  return translating([&] {
    return through_stock(stock_call(OpKind::kAllReduceCoalesced, tensors, opts.reduceOp), tensors,
                         opts.timeout, opts.asyncOp, OpType::ALLREDUCE_COALESCED,
                         [tensors, opts](::c10d::Backend& engine) mutable {
                           return engine.allreduce_coalesced(tensors, opts);
                         });
  });
}

WorkPtr FastcommBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  return translating([&] {
    const at::Tensor& tensor = only(tensors, "reduce");
    return through_stock(
        stock_call(OpKind::kReduce, tensor, opts.reduceOp, static_cast<int>(opts.rootRank)),
        tensors, opts.timeout, opts.asyncOp, OpType::REDUCE,
        [tensors, opts](::c10d::Backend& engine) mutable { return engine.reduce(tensors, opts); });
  });
}

WorkPtr FastcommBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                             const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    return through_stock(stock_call(OpKind::kAllGatherCoalesced, joined(inputs, all_of(outputs))),
                         all_of(outputs), opts.timeout, opts.asyncOp, OpType::ALLGATHER_COALESCED,
                         [outputs, inputs, opts](::c10d::Backend& engine) mutable {
                           return engine.allgather_coalesced(outputs, inputs, opts);
                         });
  });
}

WorkPtr FastcommBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    return through_stock(stock_call(OpKind::kAllGatherIntoTensorCoalesced, joined(inputs, outputs)),
                         outputs, opts.timeout, opts.asyncOp, OpType::ALLGATHER_COALESCED,
                         [outputs, inputs, opts](::c10d::Backend& engine) mutable {
                           return engine.allgather_into_tensor_coalesced(outputs, inputs, opts);
                         });
  });
}

WorkPtr FastcommBackend::gather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::GatherOptions& opts) {
  return translating([&] {
    const at::Tensor& input = only(inputs, "gather");
    check_root_list("gather", outputs, input, opts.rootRank == getRank(), getSize());
    return through_stock(stock_call(OpKind::kGather, input, static_cast<int>(opts.rootRank)),
                         inputs, opts.timeout, opts.asyncOp, OpType::GATHER,
                         [outputs, inputs, opts](::c10d::Backend& engine) mutable {
                           return engine.gather(outputs, inputs, opts);
                         });
  });
}

WorkPtr FastcommBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                 const ::c10d::ScatterOptions& opts) {
  return translating([&] {
    const at::Tensor& output = only(outputs, "scatter");
    check_root_list("scatter", inputs, output, opts.rootRank == getRank(), getSize());
    return through_stock(stock_call(OpKind::kScatter, output, static_cast<int>(opts.rootRank)),
                         outputs, opts.timeout, opts.asyncOp, OpType::SCATTER,
                         [outputs, inputs, opts](::c10d::Backend& engine) mutable {
                           return engine.scatter(outputs, inputs, opts);
                         });
  });
}

WorkPtr FastcommBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const ::c10d::ReduceScatterOptions& opts) {
  return translating([&] {
    return through_stock(
        stock_call(OpKind::kReduceScatterTensorCoalesced, joined(outputs, inputs), opts.reduceOp),
        outputs, opts.timeout, opts.asyncOp, OpType::REDUCE_SCATTER,
        [outputs, inputs, opts](::c10d::Backend& engine) mutable {
          return engine.reduce_scatter_tensor_coalesced(outputs, inputs, opts);
        });
  });
}

WorkPtr FastcommBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const ::c10d::AllToAllOptions& opts) {
  return translating([&] {
    return through_stock(
        stock_all_to_all(output, input, output_splits, input_splits, getRank(), getSize()),
        Tensors{output}, opts.timeout, opts.asyncOp, OpType::ALLTOALL_BASE,
        [output, input, output_splits, input_splits, opts](::c10d::Backend& engine) mutable {
          return engine.alltoall_base(output, input, output_splits, input_splits, opts);
        });
  });
}

WorkPtr FastcommBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                  const ::c10d::AllToAllOptions& opts) {
  return translating([&] {
    return through_stock(stock_all_to_all(outputs, inputs, getRank(), getSize()), outputs,
                         opts.timeout, opts.asyncOp, OpType::ALLTOALL,
                         [outputs, inputs, opts](::c10d::Backend& engine) mutable {
                           return engine.alltoall(outputs, inputs, opts);
                         });
  });
}

void FastcommBackend::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) {
  translating([&] {
    const Milliseconds limit = timeout_or_default(opts.timeout);
    lanes_->here(limit).stock(limit)->monitoredBarrier(opts, wait_all_ranks);
  });
}

}  // namespace fastcomm
