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

/// No engine of their device has taken them. The first decides: GradientTensors refuses the rest if they lie
/// elsewhere.
bool are_elsewhere(const Tensors& tensors) {
  return !tensors.empty() && !tensors[0].is_cpu() && !tensors[0].is_meta();
}

}  // namespace

std::optional<NativeEngine::Fused> NativeEngine::fused_reduce(const Tensors& gradients,
                                                              const GradientOptions& options,
                                                              std::optional<Milliseconds> timeout,
                                                              bool async) {
  if (are_elsewhere(gradients)) return std::nullopt;
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
  if (are_elsewhere(tensors)) return std::nullopt;
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
