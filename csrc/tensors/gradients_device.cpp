#include "tensors/gradients_device.h"

#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <ATen/ops/empty.h>

#include "kernels/cuda/multi_gradient.h"

namespace fastcomm {
namespace {

void launch(const std::vector<Gradient>& gradients,
            const std::vector<std::vector<const char*>>& sources, const GradientReduceSpec& spec,
            int device, const at::Tensor& scratch, const TensorList& results) {
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
  const bool wide = results[0].scalar_type() == at::kDouble;
  const NormResults into{results[2].mutable_data_ptr<double>(), results[0].mutable_data_ptr(),
                         wide ? DType::kFloat64 : DType::kFloat32,
                         results[1].mutable_data_ptr<float>()};
  launch_multi_gradient(segments.data(), static_cast<int>(count), spec, scratch.mutable_data_ptr(),
                        into, native_stream(current_stream(device)));
}

}  // namespace

void sum_gradients(const std::vector<Gradient>& gradients,
                   const std::vector<std::vector<const char*>>& sources, const GradientSpec& spec,
                   int device, const TensorList& results) {
  const int size = static_cast<int>(sources.size());
  launch(gradients, sources, {size, 1, spec.average ? size : 1, spec.unscale, spec.norm}, device,
         gradient_scratch(gradients, device), results);
}

at::Tensor gradient_scratch(const std::vector<Gradient>& gradients, int device) {
  std::vector<GradientSegment> segments;
  for (const Gradient& each : gradients) {
    segments.push_back({{nullptr, nullptr, each.count}, each.dtype, each.wire});
  }
  const auto bytes = gradient_scratch_bytes(segments.data(), static_cast<int>(segments.size()));
  return at::empty({static_cast<int64_t>(bytes)},
                   at::TensorOptions(at::kByte).device(accelerator_device(device)));
}

void look_at_gradients(const std::vector<Gradient>& gradients, NormKind norm, int device,
                       const at::Tensor& scratch, const TensorList& results) {
  std::vector<const char*> own;
  std::vector<Gradient> as_written = gradients;
  for (Gradient& gradient : as_written) {
    own.push_back(gradient.data);
    gradient.wire = gradient.dtype;
  }
  GradientReduceSpec spec{1, 0};
  spec.norm = norm;
  launch(as_written, {own}, spec, device, scratch, results);
}

}  // namespace fastcomm
#endif
