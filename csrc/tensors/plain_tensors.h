// Tensors as pieces of memory: which ones are, and where they lie. For CPU memory and a device's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

#include <cstdint>
#include <vector>

namespace fastcomm {

using TensorList = std::vector<at::Tensor>;
using DeviceIndices = std::vector<int64_t>;

/// Whether its bytes are its value: no gaps, nothing lazy, no wrapper around another tensor.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor.is_quantized() && !tensor._is_zerotensor() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch() &&
         tensor.is_non_overlapping_and_dense();
}

/// Complex numbers as pairs in the same memory, for writing to; not of a lazily conjugated tensor.
inline at::Tensor as_pairs(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

/// Complex numbers as pairs, and nothing lazy: the same memory, unless the tensor was.
inline at::Tensor as_resolved_pairs(const at::Tensor& tensor) {
  return as_pairs(tensor.resolve_conj().resolve_neg());
}

/// The same values as plain memory.
inline at::Tensor as_plain(const at::Tensor& tensor) {
  return is_plain(tensor) ? tensor : at::empty_like(tensor).copy_(tensor);
}

inline TensorList all_plain(const TensorList& tensors) {
  TensorList found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) found.push_back(as_plain(tensor));
  return found;
}

/// For writing to.
inline std::vector<char*> pointers(const TensorList& tensors) {
  std::vector<char*> found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    found.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
  }
  return found;
}

inline std::vector<const char*> const_pointers(const TensorList& tensors) {
  std::vector<const char*> found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    found.push_back(static_cast<const char*>(tensor.const_data_ptr()));
  }
  return found;
}

/// In bytes.
inline std::vector<uint64_t> sizes_of(const TensorList& tensors) {
  std::vector<uint64_t> found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) found.push_back(tensor.nbytes());
  return found;
}

/// Whether an earlier copy can be written to: it has the form of `source`, and its memory is not
/// held elsewhere (by a graph that waits for its backward).
inline bool can_be_rewritten(const at::Tensor& copy, const at::Tensor& source) {
  return copy.defined() && copy.sizes() == source.sizes() && copy.strides() == source.strides() &&
         copy.scalar_type() == source.scalar_type() && copy.storage().nbytes() >= source.nbytes() &&
         copy.storage().use_count() == 1;
}

}  // namespace fastcomm
