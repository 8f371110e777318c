// Operations over lists of tensors as native ones: gradients reduced, shards gathered.
#include <memory>

#include "c10d/exception.h"
#include "c10d/native/launch.h"
#include "c10d/native/native_engine.h"
#include "tensors/gradients.h"

namespace fastcomm {
namespace {

Call list_call(OpKind kind, const std::shared_ptr<GradientList>& list,
               const GradientTensors& tensors) {
  Call call;
  call.kind = kind;
  call.count = list->elements();
  call.gradients = list;
  call.signature = tensors.signature();
  call.detail = tensors.describe();
  return call;
}

void check_offsets(const std::vector<ShardOffsets>& shards, int size) {
  for (const ShardOffsets& offsets : shards) {
    FC_CHECK(offsets.empty() || offsets.size() == static_cast<size_t>(size) + 1,
             "shards: ", offsets.size(), " offsets for a group of ", size,
             " ranks, which needs one more than ranks");
  }
}

}  // namespace

std::optional<NativeEngine::Fused> NativeEngine::fused_reduce(const Tensors& gradients,
                                                              const GradientOptions& options,
                                                              std::optional<Milliseconds> timeout,
                                                              bool async) {
  return translating([&]() -> std::optional<Fused> {
    check_offsets(options.shards, getSize());
    const auto held = std::make_shared<GradientTensors>(gradients, options);
    if (!held->list()->fits(traits().layout, getSize())) return std::nullopt;
    const bool scatter = !options.shards.empty();
    Call call = list_call(scatter ? OpKind::kFusedReduceScatter : OpKind::kFusedAllReduce,
                          held->list(), *held);
    call.op = options.spec.average ? ReduceOp::kAvg : ReduceOp::kSum;
    Fused fused{nullptr, make_gradient_results(gradients)};
    const auto settle = [held, results = fused.results] {
      held->write_back();
      held->write_results(results);
    };
    fused.work =
        launch(call, timeout.value_or(::c10d::kUnsetTimeout), async, gradients, settle, [&] {
          return Payload{
              ::c10d::OpType::ALLREDUCE, title_of(call), gradients, fused.results, {}, {}, settle};
        });
    return fused;
  });
}

std::optional<NativeEngine::Fused> NativeEngine::gather_shards(
    const Tensors& tensors, const std::vector<ShardOffsets>& shards,
    std::optional<Milliseconds> timeout, bool async) {
  return translating([&]() -> std::optional<Fused> {
    check_offsets(shards, getSize());
    const auto held = std::make_shared<GradientTensors>(
        tensors, GradientOptions{{false, 1, NormKind::kNone}, {}, shards, {}});
    const auto list = std::make_shared<GradientList>(shards_apart(held->list()->tensors(), shards),
                                                     GradientSpec{});
    if (!list->fits(traits().layout, getSize())) return std::nullopt;
    const Call call = list_call(OpKind::kGatherShards, list, *held);
    const auto settle = [held, tensors] {
      for (const at::Tensor& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
    };
    Fused fused;
    fused.work = launch(call, timeout.value_or(::c10d::kUnsetTimeout), async, tensors, settle, [&] {
      return Payload{::c10d::OpType::ALLGATHER, title_of(call), tensors, tensors, {}, {}, settle};
    });
    return fused;
  });
}

}  // namespace fastcomm
