// The list operations as operators of torch.library: torch.ops.fastcomm.*. Their fake implementations
// and their derivatives are in fastcomm/_operators.py.
//
// A device is its index, -1 for the CPU; here all are the CPU.
#include <torch/library.h>

#include "core/error.h"
#include "ops/tensor_lists.h"

namespace fastcomm {
namespace {

/// `tensors` once for each device, one device after the other.
TensorList broadcast_coalesced(const TensorList& tensors, at::IntArrayRef devices) {
  for (const int64_t device : devices) {
    TORCH_CHECK(device == -1, "broadcast_coalesced: tensors on the CPU, and device ", device);
  }
  TensorList result;
  result.reserve(tensors.size() * devices.size());
  for (TensorList& copy : copy_lists(tensors, static_cast<int64_t>(devices.size()))) {
    std::move(copy.begin(), copy.end(), std::back_inserter(result));
  }
  return result;
}

/// `tensors` are `sources` lists of the same length, one after the other.
TensorList reduce_add_coalesced(const TensorList& tensors, int64_t sources, int64_t destination) {
  TORCH_CHECK(destination == -1, "reduce_add_coalesced: tensors on the CPU, and destination ",
              destination);
  TORCH_CHECK(sources > 0 && tensors.size() % sources == 0,
              "reduce_add_coalesced: ", tensors.size(), " tensors from ", sources, " sources");
  const auto count = static_cast<std::ptrdiff_t>(tensors.size() / sources);
  std::vector<TensorList> lists;
  for (int64_t source = 0; source < sources; ++source) {
    const auto begin = tensors.begin() + source * count;
    lists.emplace_back(begin, begin + count);
  }
  return sum_lists(lists);
}

}  // namespace

TORCH_LIBRARY(fastcomm, library) {
  library.def("broadcast_coalesced(Tensor[] tensors, int[] devices) -> Tensor[]");
  library.def("reduce_add_coalesced(Tensor[] tensors, int sources, int destination) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(fastcomm, CPU, library) {
  library.impl("broadcast_coalesced", broadcast_coalesced);
  library.impl("reduce_add_coalesced", reduce_add_coalesced);
}

}  // namespace fastcomm
