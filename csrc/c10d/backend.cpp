#include "c10d/backend.h"

#include <ATen/ops/empty.h>
#include <Python.h>

#include "c10d/compat.h"
#include "c10d/exception.h"
#include "c10d/groups.h"
#include "c10d/launch.h"
#include "c10d/shared_tensor.h"
#include "c10d/stock_call.h"
#include "c10d/stock_support.h"
#include "c10d/store_bootstrap.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// Lets the GIL go for as long as this lives, if the thread holds it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

void check_one(const FastcommBackend::Tensors& tensors, const char* operation) {
  FC_CHECK(tensors.size() == 1, operation, ": takes one tensor a rank, not ", tensors.size());
}

}  // namespace

FastcommBackend::FastcommBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                 Milliseconds timeout, StockPtr stock,
                                 c10::intrusive_ptr<::c10d::Store> lane_store,
                                 Lanes::MakeNamedStock make_stock)
    : ::c10d::Backend(rank, size),
      options_(c10::make_intrusive<Options>(kBackendName, timeout)),
      continuations_(Continuations::create()) {
  translating([&] {
    StoreBootstrap bootstrap(store);
    Formed formed = form_group(bootstrap, rank, size, deadline_after(timeout));
    traits_ = std::move(formed.traits);
    lanes_ = std::make_unique<Lanes>(std::move(formed.group), std::move(stock),
                                     std::move(lane_store), std::move(make_stock), continuations_);
  });
}

FastcommBackend::~FastcommBackend() {
  // Gloo's destructor joins its threads, and these need the GIL to drop what a finished operation has
  // kept of Python, and to call back. Whoever drops the last reference may hold it: a Python object
  // (always so on torch 2.14), or torch's C++, as when a DistributedDataParallel outlives its group.
  const WithoutGil no_gil;
  if (!forked_from_endpoint()) continuations_->close();
  lanes_.reset();
}

void FastcommBackend::shutdown() {
  if (forked_from_endpoint()) return;
  const std::string failure = g_failure ? g_failure(false) : "";
  lanes_->leave(failure.empty() ? "" : "destroyed its process group because of " + failure);
}

void FastcommBackend::abort() {
  if (forked_from_endpoint()) return;
  lanes_->for_each([](Lane& lane) { lane.abort(); });
}

bool FastcommBackend::supportsTensorAlloc(c10::DeviceIndex) {
  return traits_.native && getSize() > 1;
}

at::Tensor FastcommBackend::allocateTensor(long size, at::TensorOptions options) {
  if (options.device().is_cpu()) {
    try {
      return shared_empty({size}, c10::typeMetaToScalarType(options.dtype()));
    } catch (const Error& error) {
      TORCH_WARN_ONCE("fastcomm: a bucket of ", size,
                      " elements lies in ordinary memory: ", error.what());
    }
  }
  return at::empty({size}, options);
}

Milliseconds FastcommBackend::timeout_or_default(Milliseconds timeout) const {
  return timeout == ::c10d::kUnsetTimeout ? options_->timeout : timeout;
}

bool FastcommBackend::is_native(const Query& query) const {
  return select_algorithm(traits_, query) != Algorithm::kStock;
}

FastcommBackend::WorkPtr FastcommBackend::allreduce(Tensors& tensors,
                                                    const ::c10d::AllreduceOptions& opts) {
  return translating([&] {
    check_one(tensors, "all_reduce");
    const at::Tensor& tensor = tensors[0];
    const auto stock = [&] {
      require_stock_all_reduce(tensor, opts.reduceOp);
      return through_stock(stock_call(OpKind::kAllReduce, tensor, opts.reduceOp), tensors,
                           opts.timeout, opts.asyncOp, ::c10d::OpType::ALLREDUCE,
                           [tensors, opts](::c10d::Backend& engine) mutable {
                             return engine.allreduce(tensors, opts);
                           });
    };
    if (!is_native_tensor(tensor)) return stock();
    require_reduction("all_reduce", tensor, opts.reduceOp);
    Call call;
    call.kind = OpKind::kAllReduce;
    set_reduction(call, opts.reduceOp);
    Buffer buffer(tensor);
    call.dtype = buffer.dtype();
    call.count = buffer.count();
    if (!is_native(call)) return stock();
    call.input = call.output = buffer.data();
    constexpr const char* kTitle = "fastcomm:all_reduce";
    return launch(
        call, opts.timeout, opts.asyncOp, kTitle, [&] { buffer.write_back(); },
        [&] { return Payload{::c10d::OpType::ALLREDUCE, kTitle, tensors, {buffer}}; });
  });
}

FastcommBackend::WorkPtr FastcommBackend::broadcast(Tensors& tensors,
                                                    const ::c10d::BroadcastOptions& opts) {
  return translating([&] {
    check_one(tensors, "broadcast");
    FC_CHECK(opts.rootRank >= 0 && opts.rootRank < getSize(), "broadcast: root ", opts.rootRank,
             " is not a rank of a group of ", getSize());
    const at::Tensor& tensor = tensors[0];
    const auto stock = [&] {
      return through_stock(stock_call(OpKind::kBroadcast, tensor, static_cast<int>(opts.rootRank)),
                           tensors, opts.timeout, opts.asyncOp, ::c10d::OpType::BROADCAST,
                           [tensors, opts](::c10d::Backend& engine) mutable {
                             return engine.broadcast(tensors, opts);
                           });
    };
    if (!is_native_tensor(tensor)) {
      require_stock("broadcast", tensor);
      return stock();
    }
    Call call;
    call.kind = OpKind::kBroadcast;
    call.root = static_cast<int>(opts.rootRank);
    Buffer buffer(tensor);
    call.dtype = buffer.dtype();
    call.count = buffer.count();
    if (!is_native(call)) return stock();
    call.output = buffer.data();
    constexpr const char* kTitle = "fastcomm:broadcast";
    return launch(
        call, opts.timeout, opts.asyncOp, kTitle, [&] { buffer.write_back(); },
        [&] { return Payload{::c10d::OpType::BROADCAST, kTitle, tensors, {buffer}}; });
  });
}

FastcommBackend::WorkPtr FastcommBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                    const ::c10d::AllgatherOptions& opts) {
  return translating([&] {
    check_one(inputs, "all_gather");
    FC_CHECK(outputs.size() == 1, "all_gather: takes one list of outputs, not ", outputs.size());
    const at::Tensor& input = inputs[0];
    const Tensors& list = outputs[0];
    FC_CHECK(static_cast<int>(list.size()) == getSize(), "all_gather: ", list.size(),
             " output tensors for a group of ", getSize(), " ranks");
    bool native = is_native_tensor(input);
    for (size_t i = 0; i < list.size(); ++i) {
      const at::Tensor& output = list[i];
      FC_CHECK(output.device() == input.device(), "all_gather: output ", i, " is on ",
               output.device(), ", the input on ", input.device());
      FC_CHECK(output.scalar_type() == input.scalar_type(), "all_gather: output ", i, " has dtype ",
               output.scalar_type(), ", the input ", input.scalar_type());
      FC_CHECK(output.numel() == input.numel(), "all_gather: output ", i, " has ", output.numel(),
               " elements, the input ", input.numel(),
               "; ranks that give tensors of different sizes must pad them");
      native = native && is_native_tensor(output);
    }
    Call call;
    call.kind = OpKind::kAllGather;
    if (native) {
      Payload payload{::c10d::OpType::ALLGATHER, "fastcomm:all_gather", list, {Buffer(input)}, 1};
      call.dtype = payload.buffers[0].dtype();
      call.count = payload.buffers[0].count();
      if (is_native(call)) {
        for (const at::Tensor& output : list) payload.buffers.emplace_back(output);
        call.input = payload.buffers[0].data();
        for (size_t i = 1; i < payload.buffers.size(); ++i) {
          call.outputs.push_back(payload.buffers[i].data());
        }
        return launch(
            call, opts.timeout, opts.asyncOp, payload.title, [&] { payload.write_back(); },
            [&] { return std::move(payload); });
      }
    }
    require_stock("all_gather", input);
    return through_stock(stock_call(OpKind::kAllGather, input), list, opts.timeout, opts.asyncOp,
                         ::c10d::OpType::ALLGATHER,
                         [outputs, inputs, opts](::c10d::Backend& engine) mutable {
                           return engine.allgather(outputs, inputs, opts);
                         });
  });
}

FastcommBackend::WorkPtr FastcommBackend::barrier(const ::c10d::BarrierOptions& opts) {
  Call call;
  call.kind = OpKind::kBarrier;
  if (!is_native(call)) return stock()->barrier(opts);
  constexpr const char* kTitle = "fastcomm:barrier";
  return launch(
      call, opts.timeout, opts.asyncOp, kTitle, [] {},
      [] { return Payload{::c10d::OpType::BARRIER, kTitle, {}, {}}; });
}

}  // namespace fastcomm
