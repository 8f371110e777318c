#if defined(FC_WITH_CUDA)
#include "ops/device_ranks.h"

#include <ATen/cuda/PeerToPeerAccess.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "devices/peer_probe.h"

namespace fastcomm {
namespace {

constexpr size_t kAlignment = 512;        // torch's allocator has the same
constexpr size_t kBlockBytes = 10 << 20;  // torch coalesces as many

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// A tensor in `block` at a byte that is aligned, of the form of `like`.
at::Tensor tensor_within(const at::Tensor& block, size_t at, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(block.storage()),
                                                         block.key_set(), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), static_cast<int64_t>(at / like.element_size()));
  return tensor;
}

}  // namespace

DeviceRanks::DeviceRanks(const std::vector<int>& devices)
    : set(devices, peer_access()), collectives(set) {}

DeviceRanks& device_ranks(const std::vector<int>& devices) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<std::vector<int>, std::unique_ptr<DeviceRanks>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<DeviceRanks>& found = known[devices];
  if (found) return *found;
  auto made = std::make_unique<DeviceRanks>(devices);
  const int size = made->set.size();
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < size; ++peer) {
      // Memory that torch maps piece by piece (expandable segments) is mapped for others on demand.
      if (devices[rank] != devices[peer] && made->set.direct(rank, peer)) {
        at::cuda::get_p2p_access(static_cast<at::DeviceIndex>(devices[rank]),
                                 static_cast<at::DeviceIndex>(devices[peer]));
      }
    }
  }
  found = std::move(made);
  return *found;
}

c10::cuda::CUDAStream current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<at::DeviceIndex>(device));
}

Streams current_streams(const std::vector<int>& devices) {
  Streams streams;
  for (const int device : devices) streams.push_back(current_stream(device).stream());
  return streams;
}

void record_use(const TensorList& tensors, int device) {
  const c10::cuda::CUDAStream stream = current_stream(device);
  for (const at::Tensor& tensor : tensors) {
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
  }
}

TensorList allocate_like(const TensorList& models, int device, bool apart) {
  const auto options = at::TensorOptions(at::kByte).device(
      at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
  TensorList made;
  made.reserve(models.size());
  size_t first = 0;
  while (first < models.size()) {
    size_t end = first, bytes = 0;
    do {
      bytes += padded(models[end++].nbytes());
    } while (!apart && end < models.size() && bytes + padded(models[end].nbytes()) <= kBlockBytes);
    const at::Tensor block = at::empty({static_cast<int64_t>(bytes)}, options);
    size_t at = 0;
    for (; first < end; ++first) {
      made.push_back(tensor_within(block, at, models[first]));
      at += padded(models[first].nbytes());
    }
  }
  return made;
}

bool are_on(const TensorList& tensors, int64_t device) {
  return std::all_of(tensors.begin(), tensors.end(), [device](const at::Tensor& tensor) {
    return tensor.is_cuda() && tensor.get_device() == device && tensor.layout() == at::kStrided &&
           tensor.has_storage() && !tensor.is_quantized() &&
           !tensor.unsafeGetTensorImpl()->is_python_dispatch();
  });
}

Tensors read_pointers(const TensorList& tensors) {
  Tensors found;
  for (const char* pointer : const_pointers(tensors)) found.push_back(const_cast<char*>(pointer));
  return found;
}

}  // namespace fastcomm
#endif
