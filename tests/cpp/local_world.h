// Ranks of one process for tests of what runs on several devices: a group, streams, and memory that
// is written before and read after an operation in the rank's own stream alone, with no wait of the
// host in between. So an operation that fails to order its streams gets wrong bytes, and a report
// under ThreadSanitizer.
//
// On the host (FC_SHIM) the devices and their links are what the test says; compiled by nvcc, every
// rank is a stream of device 0.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/cuda_host.h"
#include "core/device_guard.h"
#include "device_memory.h"
#include "devices/exchange.h"
#include "devices/peer_probe.h"

namespace fastcomm::testing {

#if defined(FC_SHIM)
using shim::Link;

/// links[a][b] for all pairs of `devices`, by `link(a, b)`; a device reaches itself.
template <class MakeLink>
void configure(int devices, const MakeLink& link) {
  std::vector<std::vector<Link>> links(devices, std::vector<Link>(devices, Link::kDirect));
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b) {
      if (a != b) links[a][b] = link(a, b);
    }
  }
  shim::Runtime::get().configure(links);
}
#endif

/// A device for each rank; on a GPU they share it.
inline std::vector<int> each_device(int ranks) {
  std::vector<int> devices(ranks, 0);
#if defined(FC_SHIM)
  std::iota(devices.begin(), devices.end(), 0);
#endif
  return devices;
}

/// So little staging memory that large tensors take several rounds.
inline DeviceSetOptions little_staging() {
  DeviceSetOptions options;
  options.most_staging_bytes = kOnDevice ? 1 << 20 : 0;  // 0: the least there may be
  return options;
}

/// Memory of a rank's device, with guards around its bytes.
class Buffer {
 public:
  static constexpr size_t kGuard = 48;

  Buffer(int device, size_t bytes, size_t offset, std::mt19937_64& random)
      : begin_(kGuard + 16 + offset), bytes_(bytes), sent_(begin_ + bytes + kGuard) {
    const DeviceGuard guard(device);
    void* memory = nullptr;
    FC_CUDA(cudaMalloc(&memory, sent_.size()), sent_.size(), " bytes of a test");
    memory_ = static_cast<char*>(memory);
    for (char& byte : sent_) byte = static_cast<char>(random());
    wanted_ = sent_;
    got_.resize(sent_.size());
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { static_cast<void>(cudaFree(memory_)); }

  char* data() const { return memory_ + begin_; }
  /// Sets what it holds before the operation.
  void fill(const std::vector<char>& bytes) {
    std::copy(bytes.begin(), bytes.end(), sent_.begin() + begin_);
    wanted_ = sent_;
  }
  /// Sets what it must hold afterwards, from byte `at`.
  void want(const std::vector<char>& bytes, size_t at = 0) {
    std::copy(bytes.begin(), bytes.end(), wanted_.begin() + begin_ + at);
  }
  std::vector<char> content() const {
    return {sent_.begin() + begin_, sent_.begin() + begin_ + bytes_};
  }

  void upload(cudaStream_t stream) {
    FC_CUDA(cudaMemcpyAsync(memory_, sent_.data(), sent_.size(), cudaMemcpyHostToDevice, stream),
            sent_.size(), " bytes of a test");
  }
  /// Downloads, then overwrites: the memory is the rank's own again.
  void take_back(cudaStream_t stream) {
    FC_CUDA(cudaMemcpyAsync(got_.data(), memory_, got_.size(), cudaMemcpyDeviceToHost, stream),
            got_.size(), " bytes of a test");
    FC_CUDA(cudaMemsetAsync(memory_, 0xee, got_.size(), stream), "a test");
  }
  long first_difference() const {
    const auto at = std::mismatch(got_.begin(), got_.end(), wanted_.begin()).first;
    return at == got_.end() ? -1 : at - got_.begin() - static_cast<long>(begin_);
  }

 private:
  char* memory_;
  size_t begin_;
  size_t bytes_;
  std::vector<char> sent_, wanted_, got_;
};

class LocalWorld {
  const std::shared_ptr<DeviceSet> shared_;

 public:
  LocalWorld(const std::vector<int>& devices, PeerAccess& access, const DeviceSetOptions& options,
             uint64_t seed)
      : LocalWorld(std::make_shared<DeviceSet>(devices, access, options), seed) {}
  /// In a group that others have too.
  LocalWorld(const std::shared_ptr<DeviceSet>& shared, uint64_t seed)
      : shared_(shared), random(seed), group(*shared), exchange(group), streams(group.size()) {
    DeviceGuard guard;
    for (int rank = 0; rank < size(); ++rank) {
      if (random() % 4 == 0) continue;  // the device's default stream
      guard.set(group.device(rank));
      FC_CUDA(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking), "a test");
    }
  }
  ~LocalWorld() {
    finish();
    for (const cudaStream_t stream : streams) {
      if (stream != nullptr) static_cast<void>(cudaStreamDestroy(stream));
    }
  }

  int size() const { return group.size(); }

  /// Adds a buffer of rank `rank`: `elements` of `element` bytes, aligned to those or better.
  Buffer& add(int rank, uint64_t elements, size_t element) {
    const size_t offset = random() % 2 == 0 ? 0 : random() % 16 / element * element;
    buffers_.push_back(
        std::make_unique<Buffer>(group.device(rank), elements * element, offset, random));
    ranks_.push_back(rank);
    return *buffers_.back();
  }

  /// Uploads what was added, runs `operation`, takes everything back, all without waiting.
  template <class Operation>
  void run(const std::string& what, const Operation& operation) {
    each_new([](Buffer& buffer, cudaStream_t stream) { buffer.upload(stream); });
    operation();
    each_new([](Buffer& buffer, cudaStream_t stream) { buffer.take_back(stream); });
    for (; checked_.size() < buffers_.size();) checked_.push_back(what);
  }

  /// Waits for everything and compares it.
  void finish() {
    DeviceGuard guard;
    for (int rank = 0; rank < size(); ++rank) {
      guard.set(group.device(rank));
      FC_CUDA(cudaStreamSynchronize(streams[rank]), "a test");
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const long wrong = buffers_[i]->first_difference();
      EXPECT(wrong == -1, checked_[i], ": buffer ", i, " of rank ", ranks_[i], ", byte ", wrong);
    }
    buffers_.clear();
    ranks_.clear();
    checked_.clear();
  }

  std::mt19937_64 random;
  DeviceSet& group;
  Exchange exchange;
  Streams streams;

 private:
  template <class Each>
  void each_new(const Each& each) {
    DeviceGuard guard;
    for (size_t i = checked_.size(); i < buffers_.size(); ++i) {
      guard.set(group.device(ranks_[i]));
      each(*buffers_[i], streams[ranks_[i]]);
    }
  }

  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<int> ranks_;            // of buffers
  std::vector<std::string> checked_;  // the operation of each buffer, once it has run
};

}  // namespace fastcomm::testing
