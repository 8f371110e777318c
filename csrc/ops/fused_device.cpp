#include "ops/fused_device.h"

#include "core/error.h"
#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "kernels/cuda/multi_gradient.h"
#include "ops/device_ranks.h"

namespace fastcomm {
namespace {

/// Enqueues what `spec` says on the gradients' device; sources[k][i] are the terms of gradient i.
/// Returns the three results.
TensorList launch(const TensorList& tensors, const std::vector<Gradient>& gradients,
                  const std::vector<std::vector<const void*>>& sources,
                  const GradientReduceSpec& spec, int device) {
  const size_t count = gradients.size();
  std::vector<std::vector<const void*>> terms(count);
  std::vector<void*> destinations(count);
  std::vector<GradientSegment> segments;
  for (size_t i = 0; i < count; ++i) {
    const Gradient& gradient = gradients[i];
    for (const auto& source : sources) terms[i].push_back(source[i]);
    destinations[i] = gradient.data;
    segments.push_back(
        {{terms[i].data(), &destinations[i], gradient.count}, gradient.dtype, gradient.wire});
  }
  const auto bytes = gradient_scratch_bytes(segments.data(), static_cast<int>(count));
  const at::Tensor scratch =
      at::empty({static_cast<int64_t>(bytes)},
                at::TensorOptions(at::kByte).device(accelerator_device(device)));
  TensorList results = make_gradient_results(tensors, accelerator_device(device));
  const bool wide = results[0].scalar_type() == at::kDouble;
  const NormResults into{results[2].mutable_data_ptr<double>(), results[0].mutable_data_ptr(),
                         wide ? DType::kFloat64 : DType::kFloat32,
                         results[1].mutable_data_ptr<float>()};
  launch_multi_gradient(segments.data(), static_cast<int>(count), spec, scratch.mutable_data_ptr(),
                        into, native_stream(current_stream(device)));
  return results;
}

/// The norms of gradients as they are.
TensorList launch_norms(const TensorList& tensors, const GradientTensors& gradients, NormKind kind,
                        int device) {
  std::vector<const void*> own;
  for (const Gradient& gradient : gradients.gradients()) own.push_back(gradient.data);
  GradientReduceSpec spec{1, 0};
  spec.norm = kind;
  std::vector<Gradient> as_written = gradients.gradients();
  for (Gradient& gradient : as_written) gradient.wire = gradient.dtype;
  return launch(tensors, as_written, {own}, spec, device);
}

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

/// Whether kernels of the first rank reach the memory of all.
bool first_reaches_all(const std::vector<int>& devices) {
  if (on_one_device(devices)) return true;
  const DeviceSet& set = device_ranks(devices).set;
  for (int rank = 1; rank < set.size(); ++rank) {
    if (!set.direct(0, rank)) return false;
  }
  return true;
}

/// Complex numbers as pairs.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

/// The sums where the first device does not reach all terms, into `results`.
void sum_staged(const std::vector<TensorList>& terms, const GradientOptions& options, int device,
                const TensorList& results) {
  std::vector<TensorList> travelling(terms.size());
  for (size_t k = 0; k < terms.size(); ++k) {
    for (const at::Tensor& term : terms[k]) {
      const at::Tensor real = as_real(term);
      const bool narrow = options.wire && real.scalar_type() == at::kFloat;
      travelling[k].push_back(narrow ? real.to(*options.wire) : real);
    }
  }
  const int divisor = options.spec.average ? static_cast<int>(terms.size()) : 1;
  const auto sums = sum_device_lists(travelling, device, divisor, options.spec.unscale);
  FC_CHECK(sums.has_value(), "fused_reduce_add_coalesced: no kernel reduces these gradients");
  for (size_t i = 0; i < results.size(); ++i) as_real(results[i]).copy_((*sums)[i]);
}

/// The sums and norms by one pass, read from where the terms lie.
TensorList sum_direct(std::vector<TensorList>& terms, const std::vector<int>& devices,
                      const GradientOptions& options, const TensorList& results,
                      const GradientTensors& gradients) {
  std::vector<std::vector<const void*>> sources(terms.size());
  for (size_t k = 0; k < terms.size(); ++k) {
    for (const at::Tensor& term : terms[k]) sources[k].push_back(term.const_data_ptr());
  }
  for (TensorList& list : terms) keep_until_enqueued(list);
  const int size = static_cast<int>(terms.size());
  const GradientReduceSpec spec{size, 1, options.spec.average ? size : 1, options.spec.unscale,
                                options.spec.norm};
  if (on_one_device(devices)) {
    return launch(results, gradients.gradients(), sources, spec, devices[0]);
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
  TensorList made = launch(results, gradients.gradients(), sources, spec, devices[0]);
  set.meet(Mark::kFinished, streams, guard);
  return made;
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
    terms.push_back(all_plain(sources[k]));
    for (size_t i = 0; i < results.size(); ++i) {
      at::Tensor& term = terms[k][i];
      if (term.strides() == results[i].strides()) continue;
      term =
          at::empty_strided(results[i].sizes(), results[i].strides(), term.options()).copy_(term);
    }
  }
  TensorList found;
  if (first_reaches_all(devices)) {
    found = sum_direct(terms, devices, options, results, gradients);
  } else {
    sum_staged(terms, options, device, results);
    found = launch_norms(results, gradients, options.spec.norm, device);
  }
  for (size_t k = 0; k < terms.size(); ++k) record_use(terms[k], devices[k]);
  std::move(found.begin(), found.end(), std::back_inserter(results));
  return results;
}

TensorList device_gradient_norms(const TensorList& gradients, NormKind kind) {
  const int device = static_cast<int>(gradients[0].get_device());
  const c10::DeviceGuard guard(accelerator_device(device));
  const GradientTensors tensors(gradients, {{false, 1, kind}, {}}, accelerator_device(device));
  TensorList results = launch_norms(gradients, tensors, kind, device);
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
