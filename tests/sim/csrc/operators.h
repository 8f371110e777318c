// torch's operators on the simulated device: memory, views and copies here, the rest as late.h
// says.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Event.h>
#include <torch/library.h>

#include <optional>

#include "late.h"
#include "lstm.h"

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

inline void LateCall::resize_outputs() const {
  for (size_t i = 0; i < count_; ++i) {
    const auto* info = schema_.arguments()[i].alias_info();
    if (info == nullptr || !info->isWrite() || !arguments_[i].isTensor()) continue;
    const at::Tensor &tensor = arguments_[i].toTensor(), &form = meta_arguments_[i].toTensor();
    if (is_sim(tensor) && tensor.sizes() != form.sizes()) {
      reshape_to(tensor, form.sizes(), form.strides());
    }
  }
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

/// Copies between two devices as CUDA does: in the source's stream, which waits for the other's,
/// and the other for it.
inline void copy_between(const at::Tensor& from, const at::Tensor& to) {
  const auto stream = current_stream(from.get_device()), other = current_stream(to.get_device());
  const auto order = [](const c10::Stream& first, const c10::Stream& second) {
    c10::Event event(kSim);
    event.record(first);
    event.block(second);
  };
  const bool apart = from.get_device() != to.get_device();
  if (apart) order(other, stream);
  Accesses accesses;
  add_accesses(accesses, from, /*write=*/false);
  add_accesses(accesses, to, /*write=*/true);
  launch(stream, "aten::copy_", std::move(accesses),
         [source = view_on_host(from), target = view_on_host(to)] {
           const at::AutoDispatchBelowADInplaceOrView below;
           target.copy_(source);
         });
  if (apart) order(stream, other);
}

/// A view of host memory that does not keep it alive.
inline at::Tensor without_keeping(const at::Tensor& tensor) {
  auto view = at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes())
                  .strides(tensor.strides())
                  .options(tensor.options().pinned_memory(false))
                  .target_device(at::kCPU)
                  .make_tensor();
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

/// As CUDA: done when it returns, unless the caller does not want to block; then pageable memory is
/// read at once, and pinned memory when the stream gets there.
inline void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto stream = current_stream(to.get_device());
  const bool late = non_blocking && from.is_pinned();
  Accesses accesses;
  if (late) add_accesses(accesses, from, /*write=*/false);
  add_accesses(accesses, to, /*write=*/true);
  launch(stream, "aten::copy_", std::move(accesses),
         [source = late ? without_keeping(from) : copy_on_host(from), target = view_on_host(to)] {
           const at::AutoDispatchBelowADInplaceOrView below;
           target.copy_(source);
         });
  if (late) PinnedMemory::get().record(from.const_data_ptr(), stream);
  if (!non_blocking) synchronize(stream);
}

inline void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto stream = current_stream(from.get_device());
  const bool late = non_blocking && to.is_pinned();
  Accesses accesses;
  add_accesses(accesses, from, /*write=*/false);
  if (to.is_pinned()) add_accesses(accesses, to, /*write=*/true);
  launch(stream, "aten::copy_", std::move(accesses),
         [source = view_on_host(from), target = without_keeping(to)] {
           const at::AutoDispatchBelowADInplaceOrView below;
           target.copy_(source);
         });
  if (late) {
    PinnedMemory::get().record(to.const_data_ptr(), stream);
  } else {
    synchronize(stream);
  }
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::NoGradGuard no_grad;
  if (to.numel() == 0) return to;
  if (is_sim(from) && is_sim(to)) {
    copy_between(from, to);
  } else if (is_sim(to)) {
    copy_to_device(from, to, non_blocking);
  } else {
    copy_to_host(from, to, non_blocking);
  }
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return to.copy_(from);
}

inline at::Scalar item(const at::Tensor& tensor) { return tensor.cpu().item(); }

inline void record_stream(at::Tensor& tensor, c10::Stream stream) {
  Memory::get().record(tensor.storage().data_ptr(), stream);
}

// A convolution on a device that torch does not know arrives under names of its own.
inline c10::OperatorHandle named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

inline void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  run_operator(named("aten::convolution"), stack);
}

/// The CPU's operator takes the bias's sizes after the weight.
inline void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const size_t first = stack->size() - 10;  // gradient, input, weight, stride, ...
  const auto weight = (*stack)[first + 2].toTensor();
  const bool transposed = (*stack)[first + 6].toBool();
  const int64_t groups = (*stack)[first + 8].toInt();
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(stack->begin() + static_cast<std::ptrdiff_t>(first) + 3,
                c10::List<int64_t>({channels}));
  run_operator(named("aten::convolution_backward"), stack);
}

inline void any_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_operator(op, stack);
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
  m.impl("_local_scalar_dense", item);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  m.impl("_thnn_fused_lstm_cell", fused_lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", fused_lstm_cell_backward);
}

// The copy looks at these bits itself; torch would resolve them by a copy, which would be this one.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&any_operator>());
}

}  // namespace sim
