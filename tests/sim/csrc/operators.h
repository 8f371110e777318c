// torch's operators on the simulated device: memory and views here, the rest by the CPU's kernels.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "device.h"

namespace sim {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

inline at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout>, std::optional<c10::Device> device,
                        std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard on(c10::device_or_default(device));
  return at::detail::empty_generic(sizes, c10::GetAllocator(kSim), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                                std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard on(c10::device_or_default(device));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kSim), kKeys,
                                           c10::dtype_or_default(dtype));
}

/// Changes the shape; the storage grows where it is too small.
inline void reshape_to(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  const size_t bytes = at::detail::computeStorageNbytes(
      sizes, strides, tensor.dtype().itemsize(), static_cast<size_t>(tensor.storage_offset()));
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  if (tensor.numel() != 0 && bytes > storage.nbytes()) resize_storage(storage, bytes);
}

inline const at::Tensor& resize_(const at::Tensor& tensor, c10::IntArrayRef sizes,
                                 std::optional<at::MemoryFormat> format) {
  if (tensor.sizes() == sizes && !format) return tensor;
  const auto shape = at::empty(sizes, tensor.options().device(at::kMeta), format);
  reshape_to(tensor, shape.sizes(), shape.strides());
  return tensor;
}

inline at::Tensor& set_view(at::Tensor& tensor, at::Storage source, int64_t offset,
                            c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  at::native::checkSetStorage(tensor, std::move(source), offset, sizes, strides);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  reshape_to(tensor, sizes, strides);
  return tensor;
}

inline at::Tensor& set_storage(at::Tensor& tensor, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / tensor.dtype().itemsize());
  return set_view(tensor, std::move(source), 0, {count}, {1});
}

inline at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return set_view(tensor, source.storage(), source.storage_offset(), source.sizes(),
                  source.strides());
}

inline at::Tensor& set_nothing(at::Tensor& tensor) {
  const c10::DeviceGuard on(tensor.device());
  return set_view(
      tensor,
      at::Storage(at::Storage::use_byte_size_t(), 0, c10::GetAllocator(kSim), /*resizable=*/true),
      0, {0}, {1});
}

inline at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef sizes,
                             c10::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::cpu::as_strided(tensor, sizes, strides, offset);
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::NoGradGuard no_grad;
  auto target = is_sim(to) ? on_host(to) : to;
  target.copy_(is_sim(from) ? on_host(from) : from, non_blocking);
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return to.copy_(from);
}

inline void record_stream(at::Tensor&, c10::Stream) {}

// A convolution on a device that torch does not know arrives under names of its own.
inline c10::OperatorHandle named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

inline void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  at::native::cpu_fallback(named("aten::convolution"), stack);
}

/// The CPU's operator has the bias's sizes behind the weight.
inline void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const size_t first = stack->size() - 10;  // gradient, input, weight, stride, ...
  const auto weight = (*stack)[first + 2].toTensor();
  const bool transposed = (*stack)[first + 6].toBool();
  const int64_t groups = (*stack)[first + 8].toInt();
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(first) + 3,
                c10::List<int64_t>({channels}));
  at::native::cpu_fallback(named("aten::convolution_backward"), stack);
}

/// Changes the running statistics, which its schema does not say: the fallback would lose that.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mean,
    const std::optional<at::Tensor>& variance, bool training, double momentum, double epsilon) {
  const auto maybe = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional<at::Tensor>(on_host(*tensor)) : tensor;
  };
  const auto [output, saved_mean, saved_deviation] =
      at::native_batch_norm(on_host(input), maybe(weight), maybe(bias), maybe(mean),
                            maybe(variance), training, momentum, epsilon);
  const auto device = input.device();
  return {output.to(device), saved_mean.to(device), saved_deviation.to(device)};
}

inline void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_", set_nothing);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_view);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("as_strided", as_strided);
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("record_stream", record_stream);
  m.impl("native_batch_norm", native_batch_norm);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

// The copy looks at these bits itself; torch would resolve them by a copy, which is this one.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace sim
