// FastcommBackend::fused_all_reduce: a list of gradients as one native operation.
#include <memory>

#include "c10d/backend.h"
#include "c10d/exception.h"
#include "c10d/launch.h"
#include "tensors/gradients.h"

namespace fastcomm {

std::optional<FastcommBackend::Fused> FastcommBackend::fused_all_reduce(
    const Tensors& gradients, const GradientOptions& options, std::optional<Milliseconds> timeout,
    bool async) {
  return translating([&]() -> std::optional<Fused> {
    if (group_ == nullptr) return std::nullopt;
    const auto held = std::make_shared<GradientTensors>(gradients, options);
    if (!held->list()->fits(traits_.layout, getSize())) return std::nullopt;
    Call call;
    call.kind = OpKind::kFusedAllReduce;
    call.op = options.spec.average ? ReduceOp::kAvg : ReduceOp::kSum;
    call.count = held->list()->elements();
    call.gradients = held->list();
    call.signature = held->signature();
    call.detail = held->describe();
    Fused fused{nullptr, make_gradient_results(gradients)};
    const auto settle = [held, results = fused.results] {
      held->write_back();
      held->write_results(results);
    };
    constexpr const char* kTitle = "fastcomm:fused_all_reduce";
    fused.work = launch(call, timeout.value_or(::c10d::kUnsetTimeout), async, kTitle, settle, [&] {
      return Payload{::c10d::OpType::ALLREDUCE, kTitle, fused.results, {}, 0, settle};
    });
    return fused;
  });
}

}  // namespace fastcomm
