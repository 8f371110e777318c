// Requests over lists of tensors in the host's memory: gradients reduced, shards gathered.
#include <memory>

#include "c10d/requests/forms.h"
#include "tensors/gradients.h"

namespace fastcomm {
namespace {

Prepared& add_list(OpKind kind, const std::shared_ptr<GradientList>& list,
                   const GradientTensors& tensors, Calls& calls) {
  Prepared& made = calls.emplace_back(kind, Home::kHost);
  made.call.count = list->elements();
  made.call.gradients = list;
  made.call.signature = tensors.signature();
  made.call.detail = tensors.describe();
  return made;
}

}  // namespace

void add_fused_reduce(const Site& site, const Request& request, Calls& calls) {
#if defined(FC_DEVICES)
  if (site.home == Home::kTensor) return add_fused_reduce_there(site, request, calls);
#endif
  const GradientOptions& options = *request.gradients;
  check_offsets(options.shards, site.size);
  const Tensors gradients = request.outputs.vec();
  const auto held = std::make_shared<GradientTensors>(gradients, options);
  Prepared& made = add_list(request.kind, held->list(), *held, calls);
  made.call.op = options.spec.average ? ReduceOp::kAvg : ReduceOp::kSum;
  *request.results = make_gradient_results(gradients);
  made.held.add_steps().before_write_back = [held, results = *request.results] {
    held->write_back();
    held->write_results(results);
  };
}

void add_gather_shards(const Site& site, const Request& request, Calls& calls) {
#if defined(FC_DEVICES)
  if (site.home == Home::kTensor) return add_gather_shards_there(site, request, calls);
#endif
  const std::vector<ShardOffsets>& shards = request.gradients->shards;
  check_offsets(shards, site.size);
  const Tensors tensors = request.outputs.vec();
  const auto held = std::make_shared<GradientTensors>(tensors, *request.gradients);
  const auto list =
      std::make_shared<GradientList>(shards_apart(held->list()->tensors(), shards), GradientSpec{});
  Prepared& made = add_list(request.kind, list, *held, calls);
  made.held.add_steps().before_write_back = [held, tensors] {
    held->write_back();
    for (const at::Tensor& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
  };
}

}  // namespace fastcomm
