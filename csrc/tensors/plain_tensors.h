// Tensors as runs of memory, on the CPU or a device: tests for such tensors, and their addresses.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>

#include <cstdint>
#include <vector>

namespace fastcomm {

using TensorList = std::vector<at::Tensor>;

/// True if the tensor's elements lie in memory, not quantized, and it is no wrapper around another
/// tensor.
inline bool has_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

/// True if the tensor's bytes are its value: it has memory without gaps, and nothing is lazy.
inline bool is_plain(const at::Tensor& tensor) {
  return has_memory(tensor) && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor() &&
         tensor.is_non_overlapping_and_dense();
}

/// The same memory with complex numbers as pairs, which may be written to. The tensor must not be
/// lazily conjugated.
inline at::Tensor as_pairs(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

/// The same values with complex numbers as pairs, and nothing lazy. The same memory too, unless the
/// tensor was lazy.
inline at::Tensor as_resolved_pairs(const at::Tensor& tensor) {
  return as_pairs(tensor.resolve_conj().resolve_neg());
}

/// The tensor itself if it is plain, else a plain copy.
inline at::Tensor as_plain(const at::Tensor& tensor) {
  return is_plain(tensor) ? tensor : at::empty_like(tensor).copy_(tensor);
}

/// The same with the strides of `like`, which is plain and has the tensor's shape.
inline at::Tensor as_plain_like(const at::Tensor& tensor, const at::Tensor& like) {
  if (is_plain(tensor) && tensor.strides() == like.strides()) return tensor;
  return at::empty_strided(like.sizes(), like.strides(), tensor.options()).copy_(tensor);
}

/// The results of `function` for each tensor.
template <class Function>
auto of_each(const TensorList& tensors, const Function& function) {
  std::vector<decltype(function(tensors[0]))> found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) found.push_back(function(tensor));
  return found;
}

inline TensorList all_plain(const TensorList& tensors) { return of_each(tensors, as_plain); }

/// For writing to.
inline std::vector<char*> pointers(const TensorList& tensors) {
  return of_each(tensors, [](auto& each) { return static_cast<char*>(each.mutable_data_ptr()); });
}

inline std::vector<const char*> const_pointers(const TensorList& tensors) {
  return of_each(tensors,
                 [](auto& each) { return static_cast<const char*>(each.const_data_ptr()); });
}

inline bool have_one_form(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// True if an earlier copy can be written to: it has the form of `source`, and nothing else holds
/// its memory (such as an autograd graph).
inline bool can_be_rewritten(const at::Tensor& copy, const at::Tensor& source) {
  return copy.defined() && have_one_form(copy, source) &&
         copy.storage().nbytes() >= source.nbytes() && copy.storage().use_count() == 1;
}

}  // namespace fastcomm
