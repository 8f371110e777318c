#if defined(FC_WITH_CUDA) || defined(FC_SHIM)
#include "transport/ipc/peer_pool.h"

#include <utility>

#include "core/beside_captures.h"
#include "core/cuda_host.h"
#include "core/device_guard.h"

namespace fastcomm {

PeerPool::PeerPool(int device, int rank, int size) : device_(device), rank_(rank), size_(size) {
  const DeviceGuard guard(device_);
  void* memory = nullptr;
  FC_CUDA(cudaMalloc(&memory, kMostSegments * size * sizeof(char*)), "a table of segments");
  table_ = static_cast<char**>(memory);
}

PeerPool::~PeerPool() {
  try {
    const BesideCaptures others(device_);  // any thread may release the last tensor, at any time
    forget_error(cudaFree(table_));
  } catch (const Error&) {
    // The device is lost, and its memory with it.
  }
}

void PeerPool::grow(OutOfBand& out_of_band, std::unique_ptr<WindowMemory> memory, uint64_t bytes) {
  if (segments() == kMostSegments) {
    throw Error(ErrorCode::kSystem,
                concat(kMostSegments, " segments of memory that ranks share are made: no more"));
  }
  auto segment = std::make_unique<DeviceWindows>(out_of_band, rank_, std::move(memory), bytes);
  const std::string text =
      problems_of_all(out_of_band, failure_text([&] {
                        const DeviceGuard guard(device_);
                        std::vector<char*> row;
                        for (int peer = 0; peer < size_; ++peer) {
                          row.push_back(device_view(device_, segment->window(peer), Touch::kWrite));
                        }
                        char** const to = table_ + static_cast<size_t>(segments()) * size_;
                        enqueue_and_wait("a table of segments", [&](cudaStream_t stream) {
                          return cudaMemcpyAsync(to, row.data(), row.size() * sizeof(char*),
                                                 cudaMemcpyDefault, stream);
                        });
                      }));
  if (!text.empty()) {
    segment->leave(out_of_band);
    throw Error(ErrorCode::kSystem, text);
  }
  segments_.push_back(std::move(segment));
}

std::optional<PeerPool::Address> PeerPool::find(const void* memory, uint64_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  for (int i = 0; i < segments(); ++i) {
    const auto begin = reinterpret_cast<uintptr_t>(this->begin(i));
    if (address < begin || address - begin > segments_[i]->bytes()) continue;
    const uint64_t offset = address - begin;
    if (bytes <= segments_[i]->bytes() - offset) return Address{i, offset};
  }
  return std::nullopt;
}

void PeerPool::leave(OutOfBand& out_of_band) {
  for (const auto& segment : segments_) segment->leave(out_of_band);
  segments_.clear();
}

void PeerPool::retire(const std::function<bool()>& others_are_gone) {
  for (const auto& segment : segments_) segment->retire(others_are_gone);
  segments_.clear();
}

}  // namespace fastcomm
#endif
