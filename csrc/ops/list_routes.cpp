#include "ops/list_routes.h"

#include <algorithm>

#include "ops/device_lists.h"
#include "ops/tensor_lists.h"

namespace fastcomm {
namespace {

constexpr int kCpu = -1;

}  // namespace

std::optional<std::vector<TensorList>> routed_copies(const TensorList& tensors,
                                                     const std::vector<int>& devices) {
  if (devices.empty()) return std::nullopt;
  const auto on_cpu = std::count(devices.begin(), devices.end(), kCpu);
  if (on_cpu == 0) return copy_device_lists(tensors, devices);
  if (on_cpu != static_cast<std::ptrdiff_t>(devices.size()) || !are_plain_cpu(tensors)) {
    return std::nullopt;
  }
  return copy_lists(tensors, on_cpu - 1);
}

std::optional<TensorList> routed_sums(const std::vector<TensorList>& sources, int64_t destination) {
  if (destination != kCpu) return sum_device_lists(sources, destination);
  if (!std::all_of(sources.begin(), sources.end(), are_plain_cpu)) return std::nullopt;
  return sum_lists(sources);
}

}  // namespace fastcomm
