// Tensors whose memory every rank of this process's groups has mapped: an all_reduce of them needs
// no staging (coll/all_reduce_direct.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fastcomm {

/// The reason why this process has no shared memory, empty if it has some.
std::string why_no_shared_memory();

/// A contiguous CPU tensor, zeroed, in shared memory; at least one page each. Raises Error(kSystem)
/// if there is none or none left.
at::Tensor shared_empty(at::IntArrayRef sizes, at::ScalarType dtype);

/// True if all of a tensor's memory is shared: on the host, or on a device in a pool of
/// c10d/engines/cuda/group_pool.h.
bool is_shared(const at::Tensor& tensor);

}  // namespace fastcomm
