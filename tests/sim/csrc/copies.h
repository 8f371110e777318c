// Copies of users' tensors on the host: one-dimensional, in the order of memory. Operations run
// over them.
#pragma once

#include <optional>
#include <vector>

#include "line.h"

namespace sim {

/// Raises unless these are what NCCL takes: tensors on one device, each of them one run of memory.
inline c10::Device device_of(const Tensors& read, const Tensors& written) {
  std::optional<c10::Device> device;
  for (const auto* tensors : {&read, &written}) {
    for (const auto& tensor : *tensors) {
      TORCH_CHECK(is_sim(tensor), "No backend type associated with device type ",
                  c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true));
      TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "Tensors must be CUDA and dense");
      TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()) && !tensor.is_conj() &&
                            !tensor.is_neg(),
                        "Tensors must be contiguous");
      TORCH_CHECK_VALUE(tensor.device() == device.value_or(tensor.device()),
                        "Expected all tensors on one device, found ", *device, " and ",
                        tensor.device());
      device = tensor.device();
    }
  }
  TORCH_CHECK_VALUE(device, "Expected a tensor");
  return *device;
}

/// The memory of a tensor on a device as a tensor on the CPU, which keeps it alive.
inline at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(
      Arena::get().on_host(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
      [kept = tensor.storage()](void*) {}, tensor.options().device(at::kCPU).pinned_memory(false),
      at::Device(at::kCPU));
}

/// The user's memory itself.
inline at::Tensor memory_of(const at::Tensor& tensor) {
  return on_host(tensor).as_strided({tensor.numel()}, {1});
}
inline at::Tensor copy_of(const at::Tensor& tensor) { return memory_of(tensor).clone(); }
inline Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const auto& tensor : tensors) copies.push_back(copy_of(tensor));
  return copies;
}
/// Gives the tensor the content of the copy at the end.
inline void give(Pending& pending, const at::Tensor& copy, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(copy.numel() == tensor.numel(), "output tensor of ", tensor.numel(),
                    " elements for ", copy.numel());
  TORCH_CHECK_TYPE(copy.scalar_type() == tensor.scalar_type(),
                   "output tensor must have the same type as input tensor");
  pending.results.emplace_back(copy, memory_of(tensor));
}
/// Copies whose content these tensors get.
inline Tensors copies_for(Pending& pending, const Tensors& tensors) {
  auto copies = copies_of(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) give(pending, copies[i], tensors[i]);
  return copies;
}

inline at::Tensor bytes_of(const at::Tensor& copy) { return copy.view(at::kByte); }
/// The numbers that sums are made of.
inline at::Tensor numbers_of(const at::Tensor& copy) {
  return copy.is_complex() ? at::view_as_real(copy).view({-1}) : copy;
}

}  // namespace sim
