#include "ops/device_lists.h"

#if defined(FC_WITH_CUDA)
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/PeerToPeerAccess.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "coll/cuda/local_collectives.h"
#include "kernels/cuda/peer_probe.h"
#include "ops/terms.h"
#include "tensors/dtype.h"

namespace fastcomm {
namespace {

constexpr size_t kAlignment = 512;        // torch's allocator has the same
constexpr size_t kBlockBytes = 10 << 20;  // torch coalesces as many

/// The devices of some operations, which keep their events and pinned memory from one to the next.
struct Together {
  explicit Together(const std::vector<int>& devices)
      : group(devices, peer_access()), collectives(group) {}

  DeviceGroup group;
  LocalCollectives collectives;
};

/// One for each list of devices, for good: CUDA may be gone before destructors run.
Together& together(const std::vector<int>& devices) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<std::vector<int>, std::unique_ptr<Together>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Together>& found = known[devices];
  if (found) return *found;
  auto made = std::make_unique<Together>(devices);
  const int size = made->group.size();
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < size; ++peer) {
      // Memory that torch maps piece by piece (expandable segments) is mapped for others on demand.
      if (devices[rank] != devices[peer] && made->group.direct(rank, peer)) {
        at::cuda::get_p2p_access(static_cast<at::DeviceIndex>(devices[rank]),
                                 static_cast<at::DeviceIndex>(devices[peer]));
      }
    }
  }
  found = std::move(made);
  return *found;
}

std::vector<int> as_ranks(const DeviceIndices& devices) { return {devices.begin(), devices.end()}; }

c10::cuda::CUDAStream current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<at::DeviceIndex>(device));
}

Streams current_streams(const std::vector<int>& devices) {
  Streams streams;
  for (const int device : devices) streams.push_back(current_stream(device).stream());
  return streams;
}

/// Memory that was allocated for another stream is not given out again before this one is done.
void record_use(const TensorList& tensors, int device) {
  const c10::cuda::CUDAStream stream = current_stream(device);
  for (const at::Tensor& tensor : tensors) {
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
  }
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// A tensor in `block` at a byte that is aligned, of the form of `like`.
at::Tensor tensor_within(const at::Tensor& block, size_t at, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(block.storage()),
                                                         block.key_set(), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), static_cast<int64_t>(at / like.element_size()));
  return tensor;
}

/// New tensors like `models`, which are plain, on a device: many in a block, or each in its own.
TensorList allocate_like(const TensorList& models, int device, bool apart = false) {
  const auto options = at::TensorOptions(at::kByte).device(
      at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
  TensorList made;
  made.reserve(models.size());
  size_t first = 0;
  while (first < models.size()) {
    size_t end = first, bytes = 0;
    do {
      bytes += aligned(models[end++].nbytes());
    } while (!apart && end < models.size() && bytes + aligned(models[end].nbytes()) <= kBlockBytes);
    const at::Tensor block = at::empty({static_cast<int64_t>(bytes)}, options);
    size_t at = 0;
    for (; first < end; ++first) {
      made.push_back(tensor_within(block, at, models[first]));
      at += aligned(models[first].nbytes());
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

bool can_meet(size_t ranks) { return ranks >= 1 && ranks <= static_cast<size_t>(kMaxLocalRanks); }

/// For sources, which the collectives take as they take destinations.
Tensors read_pointers(const TensorList& tensors) {
  Tensors found;
  for (const char* pointer : const_pointers(tensors)) found.push_back(const_cast<char*>(pointer));
  return found;
}

/// `tensors` of devices[0] to lists[k] on devices[k + 1].
void send(const TensorList& tensors, const std::vector<int>& devices,
          const std::vector<TensorList>& lists) {
  RankTensors ranks{read_pointers(tensors)};
  for (const TensorList& list : lists) ranks.push_back(pointers(list));
  together(devices).collectives.broadcast(ranks, sizes_of(tensors), 0, current_streams(devices));
  record_use(tensors, devices[0]);
}

}  // namespace

std::optional<std::vector<TensorList>> copy_device_lists(const TensorList& tensors,
                                                         const DeviceIndices& devices) {
  if (!can_meet(devices.size()) || !are_on(tensors, devices[0])) return std::nullopt;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::vector<int> ranks = as_ranks(devices);
  const TensorList sources = all_plain(tensors);
  std::vector<TensorList> copies;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    copies.push_back(allocate_like(sources, ranks[rank]));
  }
  send(sources, ranks, copies);
  return copies;
}

std::optional<int64_t> refresh_device_lists(const TensorList& tensors, const DeviceIndices& devices,
                                            std::vector<TensorList>& copies) {
  if (!can_meet(devices.size()) || !are_on(tensors, devices[0])) return std::nullopt;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::vector<int> ranks = as_ranks(devices);
  const TensorList sources = all_plain(tensors);
  copies.resize(devices.size() - 1);
  int64_t bytes = 0;
  for (size_t k = 0; k < copies.size(); ++k) {
    TensorList& list = copies[k];
    list.resize(sources.size());
    for (size_t i = 0; i < list.size(); ++i) {
      // Each in a block of its own: one that is held keeps no other from being written to.
      if (!can_be_rewritten(list[i], sources[i]) || list[i].get_device() != devices[k + 1]) {
        list[i] = allocate_like({sources[i]}, ranks[k + 1], /*apart=*/true)[0];
      }
      bytes += static_cast<int64_t>(sources[i].nbytes());
    }
  }
  send(sources, ranks, copies);
  for (size_t k = 0; k < copies.size(); ++k) record_use(copies[k], ranks[k + 1]);
  return bytes;
}

std::optional<TensorList> sum_device_lists(const std::vector<TensorList>& sources,
                                           int64_t destination) {
  check_terms(sources);
  const size_t count = sources[0].size();
  if (!can_meet(sources.size()) || count == 0) return std::nullopt;
  std::vector<int> ranks;
  for (const TensorList& list : sources) {
    if (!list[0].is_cuda() || !are_on(list, list[0].get_device())) return std::nullopt;
    ranks.push_back(static_cast<int>(list[0].get_device()));
  }
  const auto root = std::find(ranks.begin(), ranks.end(), static_cast<int>(destination));
  if (root == ranks.end()) return std::nullopt;
  std::map<at::ScalarType, std::vector<size_t>> by_dtype;
  for (size_t i = 0; i < count; ++i) {
    const at::ScalarType type = sources[0][i].scalar_type();
    if (dtype_of(type) == DType::kOther) return std::nullopt;
    by_dtype[type].push_back(i);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  TensorList result(count);
  for (const auto& [type, places] : by_dtype) {
    const DType dtype = dtype_of(type);
    RankTensors inputs;
    std::vector<TensorList> columns(sources.size());
    Sizes counts;
    for (const size_t place : places) {
      counts.push_back(static_cast<uint64_t>(sources[0][place].numel()));
    }
    for (size_t rank = 0; rank < sources.size(); ++rank) {
      for (size_t k = 0; k < places.size(); ++k) {
        at::Tensor term = as_plain(sources[rank][places[k]]);
        if (rank > 0 && term.strides() != columns[0][k].strides()) {
          term = at::empty_strided(columns[0][k].sizes(), columns[0][k].strides(), term.options())
                     .copy_(term);
        }
        columns[rank].push_back(std::move(term));
      }
      inputs.push_back(read_pointers(columns[rank]));
    }
    TensorList made = allocate_like(columns[0], static_cast<int>(destination));
    ReduceSpec spec{dtype, dtype, static_cast<int>(ranks.size()), 1};
    together(ranks).collectives.reduce(inputs, pointers(made), counts, spec,
                                       static_cast<int>(root - ranks.begin()),
                                       current_streams(ranks));
    for (size_t rank = 0; rank < ranks.size(); ++rank) record_use(columns[rank], ranks[rank]);
    for (size_t k = 0; k < places.size(); ++k) result[places[k]] = std::move(made[k]);
  }
  return result;
}

}  // namespace fastcomm

#else

namespace fastcomm {

std::optional<std::vector<TensorList>> copy_device_lists(const TensorList&, const DeviceIndices&) {
  return std::nullopt;
}

std::optional<int64_t> refresh_device_lists(const TensorList&, const DeviceIndices&,
                                            std::vector<TensorList>&) {
  return std::nullopt;
}

std::optional<TensorList> sum_device_lists(const std::vector<TensorList>&, int64_t) {
  return std::nullopt;
}

}  // namespace fastcomm
#endif
