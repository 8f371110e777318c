#include "tensors/accelerator.h"
#if defined(FC_DEVICES)
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/env.h"
#include "devices/peer_probe.h"
#include "ops/device_ranks.h"

namespace fastcomm {
namespace {

constexpr size_t kAlignment = 512;        // as in torch's allocator
constexpr size_t kBlockBytes = 10 << 20;  // the size of torch's coalesced blocks

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// A tensor of the form of `like` in `block`, at an aligned byte.
at::Tensor tensor_within(const at::Tensor& block, size_t at, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(block.storage()),
                                                         block.key_set(), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), static_cast<int64_t>(at / like.element_size()));
  return tensor;
}

/// A PeerProbe. Memory that torch maps piece by piece (expandable segments) is mapped for others
/// only on demand, and some allocators cannot do so.
ProbeResult probe_tensors(int device, int peer, int tries) {
  ProbeResult result = probe_peers(device, peer, tries);
  if (result.busy || !result.wrong.empty()) return result;
  if (map_for_peers(device, peer, result.wrong)) map_for_peers(peer, device, result.wrong);
  return result;
}

using KnownRanks = std::map<std::vector<int>, std::unique_ptr<DeviceRanks>>;

bool capturing(const std::vector<int>& devices) {
  return std::any_of(devices.begin(), devices.end(), is_capturing);
}

/// Devices that meet for the first time probe each other, which waits for them.
void check_first_meeting(const KnownRanks& known, const std::vector<int>& devices) {
  const auto all_in = [&](const std::vector<int>& list) {
    return std::all_of(devices.begin(), devices.end(), [&](int device) {
      return std::find(list.begin(), list.end(), device) != list.end();
    });
  };
  const bool have_met =
      all_in({devices[0]}) ||
      std::any_of(known.begin(), known.end(), [&](auto& k) { return k.second && all_in(k.first); });
  if (have_met || !capturing(devices)) return;
  throw Error(ErrorCode::kUnsupported,
              "the first operation on these devices cannot be captured into a graph: they try "
              "whether they reach each other's memory. Run one before the capture");
}

/// Data that goes through pinned memory waits for events of earlier calls, which are in no graph.
void check_capture(const DeviceSet& set, const std::vector<int>& devices) {
  for (int rank = 0; rank < set.size(); ++rank) {
    for (int peer = 0; peer < set.size(); ++peer) {
      if (set.direct(rank, peer)) continue;
      if (!capturing(devices)) return;
      throw Error(
          ErrorCode::kUnsupported,
          concat("an operation on devices ", devices[rank], " and ", devices[peer],
                 " cannot be captured into a graph: they do not reach each other's memory (",
                 set.access(rank, peer).reason, ")"));
    }
  }
}

}  // namespace

PeerAccess& tensor_access() {
  static auto& access = *new PeerAccess(probe_tensors, environment().peer_access);
  return access;
}

DeviceRanks::DeviceRanks(const std::vector<int>& devices)
    : set(devices, tensor_access()), exchange(set) {}

DeviceRanks& device_ranks(const std::vector<int>& devices) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new KnownRanks;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<DeviceRanks>& found = known[devices];
  if (!found) {
    check_first_meeting(known, devices);
    found = std::make_unique<DeviceRanks>(devices);
  }
  check_capture(found->set, devices);
  return *found;
}

Streams current_streams(const std::vector<int>& devices) {
  Streams streams;
  for (const int device : devices) streams.push_back(native_stream(current_stream(device)));
  return streams;
}

void record_use(const TensorList& tensors, int device) {
  const c10::Stream stream = current_stream(device);
  for (const at::Tensor& tensor : tensors) record_use(tensor, stream);
}

std::map<at::ScalarType, std::vector<size_t>> by_dtype(const TensorList& tensors) {
  std::map<at::ScalarType, std::vector<size_t>> found;
  for (size_t i = 0; i < tensors.size(); ++i) found[tensors[i].scalar_type()].push_back(i);
  return found;
}

TensorList allocate_like(const TensorList& models, int device) {
  const auto options = at::TensorOptions(at::kByte).device(accelerator_device(device));
  TensorList made(models.size());
  const auto place = [&](const std::vector<size_t>& indices, size_t bytes) {
    const at::Tensor block = at::empty({static_cast<int64_t>(bytes)}, options);
    size_t at = 0;
    for (const size_t i : indices) {
      made[i] = tensor_within(block, at, models[i]);
      at += padded(models[i].nbytes());
    }
  };
  // torch.save refuses storages that tensors of two types share.
  for (const auto& [type, indices] : by_dtype(models)) {
    std::vector<size_t> chosen;
    size_t bytes = 0;
    for (const size_t i : indices) {
      const size_t more = padded(models[i].nbytes());
      if (!chosen.empty() && bytes + more > kBlockBytes) {
        place(chosen, bytes);
        chosen.clear();
        bytes = 0;
      }
      chosen.push_back(i);
      bytes += more;
    }
    place(chosen, bytes);
  }
  return made;
}

bool are_on(const TensorList& tensors, int64_t device) {
  return std::all_of(tensors.begin(), tensors.end(), [device](const at::Tensor& tensor) {
    return is_on_accelerator(tensor) && tensor.get_device() == device && has_memory(tensor);
  });
}

}  // namespace fastcomm
#endif
