#include "c10d/cuda/cuda_engine.h"
#if defined(FC_DEVICES)
#include <ATen/record_function.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "c10d/calls/even.h"
#include "c10d/calls/pairs.h"
#include "c10d/exception.h"
#include "c10d/hooks.h"
#include "c10d/work_of_many.h"
#include "coll/operations.h"
#include "transport/fork.h"

namespace fastcomm {

using ::c10d::OpType;
using WorkPtr = Engine::WorkPtr;

namespace {

/// A part to each rank, from the root; or from each, to the root. `list` is empty elsewhere.
Prepared prepare_rooted(const Site& site, OpKind kind, OpType type, const at::Tensor& each,
                        const Tensors& list, int root) {
  Prepared made(kind, type, site.place);
  const bool gathers = kind == OpKind::kGather;
  const Buffer own = gathers ? made.read(each) : made.write(each);
  made.of(own);
  made.call.root = root;
  Tensors copies;
  for (const at::Tensor& part : list) {
    // The root's list may lie anywhere: the others do not know where.
    const bool is_here = part.device() == each.device();
    FC_CHECK(is_here || !is_capturing(each.get_device()), op_kind_name(kind),
             ": a tensor of the root's list is on ", part.device().str(),
             ", where no graph copies");
    const at::Tensor here = is_here ? part : part.to(each.device());
    if (gathers) {
      made.call.outputs.push_back(made.write(here).data());
    } else {
      made.call.inputs.push_back(made.read(here).data());
    }
    copies.push_back(here);
  }
  const bool separate = gathers ? apart(own.data(), made.call.outputs, made.call.bytes(), site.rank)
                                : apart(own.data(), made.call.inputs, made.call.bytes(), site.rank);
  if (!separate) {
    return gathers ? prepare_rooted(site, kind, type, each.clone(), list, root)
                   : prepare_rooted(site, kind, type, each, clones(list), root);
  }
  gathers ? made.call.input = own.data() : made.call.output = own.data();
  if (gathers) {
    made.payload.behind = [list, copies] {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < list.size(); ++i) {
        if (!copies[i].is_same(list[i])) list[i].detach().copy_(copies[i]);
      }
    };
  }
  made.payload.value = gathers ? list : Tensors{each};
  return made;
}

/// Queries name no reduction for lists.
ReduceOp reduction(const Query& query) {
  return row_of(query.kind).takes_list ? ReduceOp::kSum : query.op;
}

Tensors joined(const TensorLists& lists, const Tensors& more) {
  Tensors all = more;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

CudaEngine::CudaEngine(std::shared_ptr<CudaGroup> group, Engine& other,
                       std::unique_ptr<PoolHosts> hosts, int rank, int size,
                       c10::intrusive_ptr<Options> options, Continuations::Ptr continuations)
    : Engine(rank, size, std::move(options), std::move(continuations)),
      group_(std::move(group)),
      other_(other),
      hosts_(std::move(hosts)),
      watch_(std::make_unique<CudaWatch>(group_)) {
  for (int op = 0; op < kNumReduceOps; ++op) {
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      const std::pair pair{static_cast<DType>(dtype), static_cast<ReduceOp>(op)};
      if (group_->reduces(pair.first, pair.second)) kernels_.insert(pair);
    }
  }
}

CudaEngine::~CudaEngine() {
  if (forked_from_endpoint()) return;
  if (const auto error = caught([&] { leave(""); })) {
    LOG(WARNING) << "fastcomm: " << what_of(error);
  }
}

bool CudaEngine::moves(const Tensors& tensors) const {
  return std::all_of(tensors.begin(), tensors.end(), [this](const at::Tensor& tensor) {
    return is_on_accelerator(tensor) && tensor.get_device() == group_->device() &&
           tensor.layout() == at::kStrided && !tensor.is_quantized();
  });
}

bool CudaEngine::reduces(const Tensors& tensors, const ::c10d::ReduceOp& op) const {
  const ReduceOp reduction = reduce_op_of(op);
  return moves(tensors) && !has_factor_on_device(op) &&
         std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
           return reduces(dtype_of(c10::toRealValueType(tensor.scalar_type())), reduction);
         });
}

const Engine& CudaEngine::serving(const Query& query) const {
  const OperationRow& row = row_of(query.kind);
  const bool ours = row.peers.work != PeerWay::Work::kNone &&
                    (!(row.reduces || row.takes_list) || reduces(query.dtype, reduction(query)));
  return ours ? static_cast<const Engine&>(*this) : other_.serving(query);
}

Selection CudaEngine::explain(const Query& query) const {
  const Engine& engine = serving(query);
  if (&engine != this) return engine.explain(query);
  Call call;
  call.kind = query.kind;
  call.dtype = query.dtype;
  call.op = reduction(query);
  call.count = query.bytes / dtype_size(query.dtype);
  const bool at_once = group_->is_one_launch(call);
  const CudaGroup::Options& options = group_->options();
  const bool on_devices = options.place == WindowPlace::kDevices;
  return {at_once ? Algorithm::kOneShot : Algorithm::kPipelined,
          concat("the ranks' devices ",
                 on_devices ? "reach each other's memory" : "share pinned memory of the host",
                 ": they meet",
                 at_once ? " in the kernel that does the work"
                         : ", one kernel a rank does the work, and they meet again",
                 ". In one launch where a rank reads at most ", options.slot_bytes, " bytes (",
                 chosen_by_text(options.slot_by, "FASTCOMM_ONE_SHOT_BYTES"), ")",
                 on_devices ? group_->how() : concat(". Not each other's: ", options.why))};
}

at::Tensor CudaEngine::shared_empty(at::IntArrayRef sizes, at::ScalarType dtype, std::string& why) {
  return group_->empty(sizes, dtype, *hosts_, g_interrupt_check, why);
}

WorkPtr CudaEngine::submit(Prepared made, Milliseconds timeout, bool async) {
  return translating([&]() -> WorkPtr {
    check_process([&] { return message_front(getRank(), getSize(), -1, made.name(), calls_); });
    ++calls_;
    const auto described = [&] {
      return CudaWork::Call{group_,      getRank(),          made.payload.type,
                            made.name(), made.payload.value, continuations_};
    };
    if (const auto failure = group_->failed_before(made.name())) {
      return coalescing_.noted(CudaWork::failed(described(), failure));
    }
    at::RecordFunction event(at::RecordScope::USER_SCOPE);
    std::vector<c10::IValue> shown;
    if (event.isActive()) {
      shown.assign(made.payload.shown.begin(), made.payload.shown.end());
      event.before(title_of(made.call), &shown);
    }
    async = async || coalescing_.open();
    std::optional<CudaWork::Call> call;
    if (async) call.emplace(described());
    watch_->wake();  // raises where there is no thread, before anything is enqueued
    FlightPtr flight;
    try {
      flight = group_->submit(std::move(made), timeout_or_default(timeout), async);
    } catch (...) {
      watch_->wake();
      throw;
    }
    watch_->wake();              // it may have looked, and slept, before there was anything to see
    if (!async) return nullptr;  // c10d takes this for "done" where the caller asked for that
    return coalescing_.noted(c10::make_intrusive<CudaWork>(std::move(*call), std::move(flight)));
  });
}

WorkPtr CudaEngine::submit_each(std::vector<Prepared> calls, const Tensors& value,
                                Milliseconds timeout, bool async) {
  calls.back().payload.value = value;  // they end in order: the last one's work stands for all
  WorkPtr work;
  for (Prepared& call : calls) work = submit(std::move(call), timeout, async);
  return work;
}

WorkPtr CudaEngine::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) {
  if (!reduces(tensors, opts.reduceOp)) return elsewhere(other_.allreduce(tensors, opts));
  return translating([&] {
    return submit(prepare_all_reduce(site(), tensors, opts.reduceOp), opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) {
  if (!moves(tensors)) return elsewhere(other_.broadcast(tensors, opts));
  return translating([&] {
    return submit(prepare_broadcast(site(), tensors, opts.rootRank), opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) {
  if (!reduces(tensors, opts.reduceOp)) return elsewhere(other_.reduce(tensors, opts));
  return translating([&] {
    return submit(prepare_reduce(site(), tensors, opts.reduceOp, opts.rootRank), opts.timeout,
                  opts.asyncOp);
  });
}

WorkPtr CudaEngine::allgather(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) {
  const bool ours = inputs.size() == 1 && outputs.size() == 1 && moves(joined(outputs, inputs));
  if (!ours) return elsewhere(other_.allgather(outputs, inputs, opts));
  return translating([&] {
    const Tensors& list = checked_outputs(site(), outputs, inputs[0]);
    return submit(are_even(list, inputs[0]) ? prepare_all_gather(site(), list, inputs[0])
                                            : prepare_all_gather_uneven(site(), list, inputs[0]),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::_allgather_base(at::Tensor& output, at::Tensor& input,
                                    const ::c10d::AllgatherOptions& opts) {
  if (!moves({output, input})) return elsewhere(other_._allgather_base(output, input, opts));
  return translating([&] {
    return submit(prepare_all_gather_into_tensor(site(), output, input), opts.timeout,
                  opts.asyncOp);
  });
}

WorkPtr CudaEngine::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                   const ::c10d::ReduceScatterOptions& opts) {
  const bool ours = inputs.size() == 1 && outputs.size() == 1 &&
                    reduces(joined(inputs, outputs), opts.reduceOp) &&
                    are_even(inputs[0], outputs[0]);
  if (!ours) return elsewhere(other_.reduce_scatter(outputs, inputs, opts));
  return translating([&] {
    const Tensors& parts = checked_inputs(site(), outputs, inputs);
    return submit(prepare_reduce_scatter(site(), OpKind::kReduceScatter, OpType::REDUCE_SCATTER,
                                         outputs[0], parts, opts.reduceOp),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                         const ::c10d::ReduceScatterOptions& opts) {
  if (!reduces({output, input}, opts.reduceOp)) {
    return elsewhere(other_._reduce_scatter_base(output, input, opts));
  }
  return translating([&] {
    check_parts("reduce_scatter_tensor", input, "input", output, "output", getSize());
    return submit(
        prepare_reduce_scatter(site(), OpKind::kReduceScatterTensor, OpType::_REDUCE_SCATTER_BASE,
                               output, {input}, opts.reduceOp),
        opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::gather(TensorLists& outputs, Tensors& inputs,
                           const ::c10d::GatherOptions& opts) {
  if (!moves(inputs)) return elsewhere(other_.gather(outputs, inputs, opts));
  return translating([&] {
    const at::Tensor& input = only("gather", inputs);
    const int root = checked_root("gather", opts.rootRank, getSize());
    check_root_list("gather", outputs, input, root == getRank(), getSize());
    return submit(prepare_rooted(site(), OpKind::kGather, OpType::GATHER, input,
                                 outputs.empty() ? Tensors{} : outputs[0], root),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::scatter(Tensors& outputs, TensorLists& inputs,
                            const ::c10d::ScatterOptions& opts) {
  if (!moves(outputs)) return elsewhere(other_.scatter(outputs, inputs, opts));
  return translating([&] {
    const at::Tensor& output = only("scatter", outputs);
    const int root = checked_root("scatter", opts.rootRank, getSize());
    check_root_list("scatter", inputs, output, root == getRank(), getSize());
    return submit(prepare_rooted(site(), OpKind::kScatter, OpType::SCATTER, output,
                                 inputs.empty() ? Tensors{} : inputs[0], root),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::alltoall_base(at::Tensor& output, at::Tensor& input,
                                  std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits,
                                  const ::c10d::AllToAllOptions& opts) {
  if (!moves({output, input})) {
    return elsewhere(other_.alltoall_base(output, input, output_splits, input_splits, opts));
  }
  return translating([&] {
    return submit(prepare_all_to_all_single(site(), output, input, output_splits, input_splits),
                  opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::alltoall(Tensors& outputs, Tensors& inputs,
                             const ::c10d::AllToAllOptions& opts) {
  if (!moves(joined({outputs}, inputs))) return elsewhere(other_.alltoall(outputs, inputs, opts));
  return translating([&] {
    return submit(prepare_all_to_all(site(), outputs, inputs), opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::allreduce_coalesced(Tensors& tensors,
                                        const ::c10d::AllreduceCoalescedOptions& opts) {
  if (tensors.empty() || !reduces(tensors, opts.reduceOp)) {
    return elsewhere(other_.allreduce_coalesced(tensors, opts));
  }
  return translating([&] {
    return submit_each(prepare_all_reduce_each(site(), tensors, opts.reduceOp), tensors,
                       opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                        const ::c10d::AllgatherOptions& opts) {
  const Tensors all = joined(outputs, {});
  if (inputs.empty() || !moves(joined(outputs, inputs))) {
    return elsewhere(other_.allgather_coalesced(outputs, inputs, opts));
  }
  return translating([&] {
    return submit_each(prepare_all_gather_each(site(), OpKind::kAllGatherCoalesced, inputs,
                                               checked_lists(site(), outputs, inputs)),
                       all, opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const ::c10d::AllgatherOptions& opts) {
  if (inputs.empty() || !moves(joined({outputs}, inputs))) {
    return elsewhere(other_.allgather_into_tensor_coalesced(outputs, inputs, opts));
  }
  return translating([&] {
    return submit_each(
        prepare_all_gather_each(
            site(), OpKind::kAllGatherIntoTensorCoalesced, inputs,
            checked_wholes(site(), "all_gather_into_tensor_coalesced", outputs, inputs)),
        outputs, opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const ::c10d::ReduceScatterOptions& opts) {
  if (inputs.empty() || !reduces(joined({outputs}, inputs), opts.reduceOp)) {
    return elsewhere(other_.reduce_scatter_tensor_coalesced(outputs, inputs, opts));
  }
  return translating([&] {
    check_parts_of_all(site(), "reduce_scatter_tensor_coalesced", outputs, inputs);
    return submit_each(prepare_reduce_scatter_each(site(), outputs, inputs, opts.reduceOp), outputs,
                       opts.timeout, opts.asyncOp);
  });
}

WorkPtr CudaEngine::endCoalescing() {
  return c10::make_intrusive<WorkOfMany>(getRank(), coalescing_.end(), continuations_);
}

void CudaEngine::leave(const std::string&) {
  if (left_.exchange(true)) return;  // any later reason is that the group was destroyed
  group_->leave(g_interrupt_check);
  // This may be the first to report it: no one has waited since.
  if (const auto failure = group_->untold()) {
    group_->tell();
    LOG(WARNING) << "fastcomm: " << what_of(failure);
  }
}

void CudaEngine::abort() {
  group_->give_up("none", ErrorCode::kPoisoned, concat("rank ", getRank(), " called abort()"));
}

void CudaEngine::abandon() {
  static_cast<void>(watch_.release());
  static_cast<void>(new std::shared_ptr<CudaGroup>(group_));  // its events and windows, for ever
}

}  // namespace fastcomm
#endif
