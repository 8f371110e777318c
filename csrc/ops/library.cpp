// The list operations as operators of torch.library: torch.ops.fastcomm.*. Their fake
// implementations and their derivatives are in fastcomm/_devices/operators.py.
//
// A device is its index, -1 for the CPU. torch's own functions do what ops/list_routes.h cannot,
// and sum in the same order.
#include <torch/library.h>

#include <iterator>

#include "core/error.h"
#include "ops/addends.h"
#include "ops/list_routes.h"
#include "tensors/accelerator.h"

namespace fastcomm {
namespace {

at::Device device_of(int64_t index) {
  return index == -1 ? at::Device(at::kCPU) : accelerator_device(index);
}

TensorList in_one_list(std::vector<TensorList> lists) {
  TensorList result;
  for (TensorList& list : lists) std::move(list.begin(), list.end(), std::back_inserter(result));
  return result;
}

/// Copies of `tensors` on each device, one device after the other.
TensorList broadcast_coalesced(const TensorList& tensors, at::IntArrayRef devices) {
  if (!tensors.empty()) {
    const bool on_cpu = tensors[0].is_cpu();
    std::vector<int> indices{on_cpu ? -1 : static_cast<int>(tensors[0].get_device())};
    indices.insert(indices.end(), devices.begin(), devices.end());
    if (auto copies = routed_copies(tensors, indices)) return in_one_list(std::move(*copies));
  }
  TensorList result;
  for (const int64_t device : devices) {
    for (const at::Tensor& tensor : tensors) {
      result.push_back(tensor.to(tensor.options().device(device_of(device)),
                                 /*non_blocking=*/false, /*copy=*/true));
    }
  }
  return result;
}

/// The sums, on `destination`, of `sources` lists of the same length, one after the other in
/// `tensors`.
TensorList reduce_add_coalesced(const TensorList& tensors, int64_t sources, int64_t destination) {
  TORCH_CHECK(sources > 0 && tensors.size() % sources == 0,
              "reduce_add_coalesced: ", tensors.size(), " tensors from ", sources, " sources");
  const auto count = static_cast<std::ptrdiff_t>(tensors.size() / sources);
  std::vector<TensorList> lists;
  for (int64_t source = 0; source < sources; ++source) {
    const auto begin = tensors.begin() + source * count;
    lists.emplace_back(begin, begin + count);
  }
  if (auto sums = routed_sums(lists, destination)) return std::move(*sums);
  check_addends(lists);
  TensorList result;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    TensorList addends;
    for (const TensorList& list : lists) {
      addends.push_back(list[i].to(list[i].options().device(device_of(destination)),
                                   /*non_blocking=*/false, /*copy=*/sources == 1));
    }
    result.push_back(tree_sum(std::move(addends)));
  }
  return result;
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

TORCH_LIBRARY_IMPL(fastcomm, FC_ACCELERATOR_KEY, library) {
  library.impl("broadcast_coalesced", broadcast_coalesced);
  library.impl("reduce_add_coalesced", reduce_add_coalesced);
}

}  // namespace fastcomm
