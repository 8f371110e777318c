#include "ops/fused_device.h"

#include "core/device_guard.h"
#include "core/error.h"
#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "kernels/cuda/gradient_norm.h"
#include "kernels/cuda/multi_reduce.h"
#include "ops/device_ranks.h"
#include "tensors/gradients_device.h"

namespace fastcomm {
namespace {

/// The device of each list.
std::vector<int> devices_of(const std::vector<TensorList>& sources) {
  FC_CHECK(sources.size() <= static_cast<size_t>(kMaxReduceSources),
           "fused_reduce_add_coalesced: ", sources.size(), " lists, but at most ",
           kMaxReduceSources, " on CUDA devices");
  std::vector<int> devices;
  for (size_t k = 0; k < sources.size(); ++k) {
    const at::Tensor& first = sources[k][0];
    const int device = is_on_accelerator(first) ? static_cast<int>(first.get_device()) : -1;
    FC_CHECK(device >= 0 && are_on(sources[k], device), "fused_reduce_add_coalesced: list ", k,
             " is not of dense tensors on one CUDA device");
    devices.push_back(device);
  }
  return devices;
}

bool on_one_device(const std::vector<int>& devices) {
  return std::all_of(devices.begin(), devices.end(),
                     [&](int device) { return device == devices[0]; });
}

/// True if kernels of the first rank reach the memory of all.
bool first_reaches_all(const std::vector<int>& devices) {
  if (on_one_device(devices)) return true;
  const DeviceSet& set = device_ranks(devices).set;
  for (int rank = 1; rank < set.size(); ++rank) {
    if (!set.direct(0, rank)) return false;
  }
  return true;
}

/// Writes the sums into `results` if the first device does not reach all terms.
void sum_staged(const std::vector<TensorList>& terms, const GradientOptions& options, int device,
                const TensorList& results) {
  std::vector<TensorList> travelling(terms.size());
  for (size_t k = 0; k < terms.size(); ++k) {
    for (const at::Tensor& term : terms[k]) {
      const at::Tensor real = as_pairs(term);
      const bool narrow = options.wire && real.scalar_type() == at::kFloat;
      travelling[k].push_back(narrow ? real.to(*options.wire) : real);
    }
  }
  const int divisor = options.spec.average ? static_cast<int>(terms.size()) : 1;
  const auto sums = sum_device_lists(travelling, device, divisor, options.spec.unscale);
  FC_CHECK(sums.has_value(), "fused_reduce_add_coalesced: no kernel reduces these gradients");
  for (size_t i = 0; i < results.size(); ++i) as_pairs(results[i]).copy_((*sums)[i]);
}

/// The sums and norms by one pass, which reads the terms in place.
TensorList sum_direct(std::vector<TensorList>& terms, const std::vector<int>& devices,
                      const GradientOptions& options, const TensorList& results,
                      const GradientTensors& gradients) {
  std::vector<std::vector<const char*>> sources;
  for (TensorList& list : terms) {
    sources.push_back(const_pointers(list));
    keep_until_enqueued(list);
  }
  TensorList found = make_gradient_results(results, accelerator_device(devices[0]));
  if (on_one_device(devices)) {
    sum_gradients(gradients.gradients(), sources, options.spec, devices[0], found);
    return found;
  }
  // All streams wait for all before the kernel reads the terms, and afterwards before they are
  // changed.
  DeviceSet& set = device_ranks(devices).set;
  const Streams streams = current_streams(devices);
  const std::lock_guard<std::mutex> lock(set.mutex());
  set.check(streams);
  DeviceGuard guard(devices[0]);
  set.meet(Mark::kReady, streams, guard);
  guard.set(devices[0]);
  sum_gradients(gradients.gradients(), sources, options.spec, devices[0], found);
  set.meet(Mark::kFinished, streams, guard);
  return found;
}

}  // namespace

TensorList fused_sum_device_lists(const std::vector<TensorList>& sources,
                                  const GradientOptions& options) {
  const std::vector<int> devices = devices_of(sources);
  const int device = devices[0];
  const c10::DeviceGuard guard(accelerator_device(device));
  std::vector<TensorList> terms{all_plain(sources[0])};
  TensorList results = allocate_like(terms[0], device);
  const GradientTensors gradients(results, options, accelerator_device(device));
  for (size_t k = 1; k < sources.size(); ++k) {
    TensorList& list = terms.emplace_back();
    for (size_t i = 0; i < results.size(); ++i) {
      list.push_back(as_plain_like(sources[k][i], results[i]));
    }
  }
  TensorList found;
  if (first_reaches_all(devices)) {
    found = sum_direct(terms, devices, options, results, gradients);
  } else {
    sum_staged(terms, options, device, results);
    found = make_gradient_results(results, accelerator_device(device));
    look_at_gradients(gradients.gradients(), options.spec.norm, device,
                      gradient_scratch(gradients.gradients(), device), found);
  }
  for (size_t k = 0; k < terms.size(); ++k) record_use(terms[k], devices[k]);
  std::move(found.begin(), found.end(), std::back_inserter(results));
  return results;
}

TensorList device_gradient_norms(const TensorList& gradients, NormKind kind) {
  const int device = static_cast<int>(gradients[0].get_device());
  const c10::DeviceGuard guard(accelerator_device(device));
  const GradientTensors tensors(gradients, {{false, 1, kind}, {}}, accelerator_device(device));
  TensorList results = make_gradient_results(gradients, accelerator_device(device));
  look_at_gradients(tensors.gradients(), kind, device,
                    gradient_scratch(tensors.gradients(), device), results);
  record_use(gradients, device);
  return results;
}

at::Tensor device_norm_of(const at::Tensor& parts, NormKind kind) {
  const int device = static_cast<int>(parts.get_device());
  const c10::DeviceGuard guard(accelerator_device(device));
  at::Tensor total = at::empty({}, parts.options());
  launch_norm_of_parts(parts.const_data_ptr<double>(), static_cast<int>(parts.numel()), kind,
                       total.mutable_data_ptr<double>(), native_stream(current_stream(device)));
  record_use({parts}, device);
  return total;
}

}  // namespace fastcomm

#else

namespace fastcomm {
namespace {

[[noreturn]] void without_cuda() {
  throw Error(ErrorCode::kUnsupported,
              "fastcomm was built without CUDA: it cannot reduce gradients on a CUDA device");
}

}  // namespace

TensorList fused_sum_device_lists(const std::vector<TensorList>&, const GradientOptions&) {
  without_cuda();
}

TensorList device_gradient_norms(const TensorList&, NormKind) { without_cuda(); }

at::Tensor device_norm_of(const at::Tensor&, NormKind) { without_cuda(); }

}  // namespace fastcomm
#endif
