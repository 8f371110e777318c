// Ranks as threads of one process, each launching CUDA kernels under the execution shim: windows,
// channel states and records of a group, and random inputs that make the order of a sum visible.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "device_memory.h"
#include "engines/cuda/all_reduce.h"
#include "random_values.h"

namespace fastcomm::testing {

/// What a group has set up before its first operation.
class World {
 public:
  World(int size, int channels, const ScratchLayout& layout, uint32_t first_base = 0)
      : size_(size), layout_(layout) {
    const size_t flags = channels * kLineBytes;
    std::vector<char> bases(flags);
    const std::vector<ChannelState> states(channels, ChannelState{first_base, 0, 0});
    for (int c = 0; c < channels; ++c) {
      std::memcpy(&bases[c * kLineBytes], &first_base, sizeof(first_base));
    }
    for (int rank = 0; rank < size; ++rank) {
      windows_.emplace_back(flags + channels * layout.total());
      windows_[rank].upload(bases);
      states_.emplace_back(channels * sizeof(ChannelState));
      copy_memory(states_[rank].get(), states.data(), states_[rank].bytes());
      records_.emplace_back(channels);
      streams_.push_back(make_stream());
      view_.flags[rank] = reinterpret_cast<uint32_t*>(windows_[rank].get());
      view_.scratch[rank] = windows_[rank].get() + flags;
    }
    view_.size = size;
    // Loads the kernels: loading one while another waits would deadlock.
    if (kOnDevice) max_all_reduce_channels(size, 32, 1);
  }
  ~World() {
    for (const cudaStream_t stream : streams_) destroy_stream(stream);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  CudaAllReduceArgs args(int rank) {
    CudaAllReduceArgs args{};
    args.peers = view_;
    args.peers.rank = rank;
    args.layout = layout_;
    args.states = reinterpret_cast<ChannelState*>(states_[rank].get());
    args.records = records_[rank].get();
    args.bounds = WaitBounds{timeout_ns, abort_.get()};
    return args;
  }

  /// Calls `body(rank)` on one thread a rank and waits for all, and for what they have launched.
  void run(const std::function<void(int)>& body) const {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size_; ++rank) ranks.emplace_back(body, rank);
    for (std::thread& rank : ranks) rank.join();
    for (const cudaStream_t stream : streams_) synchronize(stream);
  }

  int size() const { return size_; }
  cudaStream_t stream(int rank) const { return streams_[rank]; }
  void abort() { *abort_.get() = 1; }
  ChannelState state(int rank, int channel) const {
    ChannelState state;
    copy_memory(&state, states_[rank].get() + channel * sizeof(state), sizeof(state));
    return state;
  }
  const WaitRecord& record(int rank, int channel) const { return records_[rank].get()[channel]; }

  uint64_t timeout_ns = 120'000'000'000;

 private:
  int size_;
  ScratchLayout layout_;
  PeerView view_;
  SharedArray<uint32_t> abort_{1};
  std::vector<DeviceMemory> windows_;
  std::vector<DeviceMemory> states_;
  std::vector<SharedArray<WaitRecord>> records_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace fastcomm::testing
