#include "ops/fused_lists.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "coll/fused_local.h"
#include "core/error.h"
#include "ops/addends.h"
#include "ops/fused_device.h"
#include "tensors/accelerator.h"
#include "transport/peer_view.h"

namespace fastcomm {

namespace {

/// Calls `work(begin, end)` for all units, divided among threads.
template <class Work>
void for_all_units(const GradientList& list, const Work& work) {
  constexpr int64_t kLeastUnits = 64;  // per thread: 1 MiB of fp32
  at::parallel_for(0, list.units(), kLeastUnits, [&](int64_t begin, int64_t end) {
    work(static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
  });
}

/// True if a list starts on a device; it goes to the CPU's loops or a device's kernels as a whole.
bool begins_on_device(const TensorList& list) {
  return !list.empty() && is_on_accelerator(list[0]);
}

}  // namespace

TensorList fused_sum_lists(const std::vector<TensorList>& sources, const GradientOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_addends(sources);
  if (begins_on_device(sources[0])) return fused_sum_device_lists(sources, options);
  FC_CHECK(sources.size() <= kMaxRanks, "fused_reduce_add_coalesced: ", sources.size(),
           " lists, but at most ", kMaxRanks);
  for (size_t k = 0; k < sources.size(); ++k) {
    for (const at::Tensor& term : sources[k]) {
      FC_CHECK(term.is_cpu(), "fused_reduce_add_coalesced: list ", k, " has a tensor on ",
               term.device(), ", but the first list begins on the CPU");
    }
  }
  const size_t count = sources[0].size();
  TensorList results, terms;
  for (const at::Tensor& like : sources[0]) results.push_back(at::empty_like(like));
  const GradientTensors gradients(results, options);
  std::vector<std::vector<const char*>> from(sources.size());
  for (size_t k = 0; k < sources.size(); ++k) {
    for (size_t i = 0; i < count; ++i) {
      terms.push_back(as_plain_like(sources[k][i], results[i]));  // alive until the end
      from[k].push_back(static_cast<const char*>(terms.back().const_data_ptr()));
    }
  }
  GradientList& list = *gradients.list();
  for_all_units(list, [&](uint32_t begin, uint32_t end) { reduce_units(list, from, begin, end); });
  for (at::Tensor& made : make_gradient_results(results)) results.push_back(std::move(made));
  gradients.write_results({results.end() - 3, results.end()});
  return results;
}

TensorList gradient_norms(const TensorList& gradients, NormKind kind) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (begins_on_device(gradients)) return device_gradient_norms(gradients, kind);
  const GradientTensors tensors(gradients, {{false, 1, kind}, {}, {}, {}});
  GradientList& list = *tensors.list();
  for_all_units(list, [&](uint32_t begin, uint32_t end) { note_norms(list, begin, end); });
  TensorList results = make_gradient_results(gradients);
  tensors.write_results(results);
  return results;
}

at::Tensor norm_of(const at::Tensor& parts, NormKind kind) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  FC_CHECK((parts.is_cpu() || is_on_accelerator(parts)) && parts.scalar_type() == at::kDouble &&
               parts.dim() == 1 && parts.is_contiguous(),
           "the parts of a norm are a vector of float64 on the CPU or a CUDA device");
  if (is_on_accelerator(parts)) return device_norm_of(parts, kind);
  at::Tensor norm = at::empty({}, parts.options());
  *norm.mutable_data_ptr<double>() =
      norm_of_parts(parts.const_data_ptr<double>(), static_cast<size_t>(parts.numel()), kind);
  return norm;
}

}  // namespace fastcomm
