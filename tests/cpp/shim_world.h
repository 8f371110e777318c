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

#include "coll/cuda/all_reduce.h"
#include "random_values.h"

namespace fastcomm::testing {

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, FreeDeleter>;

inline Memory zeroed(size_t bytes) {
  Memory memory(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

/// What a group has set up before its first operation.
class World {
 public:
  World(int size, int channels, const ScratchLayout& layout, uint32_t first_base = 0)
      : size_(size), layout_(layout), states_(size), records_(size) {
    const size_t flags = channels * kLineBytes;
    for (int rank = 0; rank < size; ++rank) {
      windows_.push_back(zeroed(flags + channels * layout.total()));
      states_[rank].assign(channels, ChannelState{first_base, 0, 0});
      records_[rank].assign(channels, WaitRecord{});
      view_.flags[rank] = reinterpret_cast<uint32_t*>(windows_[rank].get());
      view_.scratch[rank] = windows_[rank].get() + flags;
      for (int c = 0; c < channels; ++c) *view_.flag(rank, c) = first_base;
    }
    view_.size = size;
  }

  CudaAllReduceArgs args(int rank) {
    CudaAllReduceArgs args{};
    args.peers = view_;
    args.peers.rank = rank;
    args.layout = layout_;
    args.states = states_[rank].data();
    args.records = records_[rank].data();
    args.bounds = WaitBounds{timeout_ns, &abort_word};
    return args;
  }

  /// Calls `body(rank)` on one thread a rank and waits for all.
  void run(const std::function<void(int)>& body) const {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size_; ++rank) ranks.emplace_back(body, rank);
    for (std::thread& rank : ranks) rank.join();
  }

  int size() const { return size_; }
  const ChannelState& state(int rank, int channel) const { return states_[rank][channel]; }
  const WaitRecord& record(int rank, int channel) const { return records_[rank][channel]; }

  uint64_t timeout_ns = 120'000'000'000;
  uint32_t abort_word = 0;

 private:
  int size_;
  ScratchLayout layout_;
  PeerView view_;
  std::vector<Memory> windows_;
  std::vector<std::vector<ChannelState>> states_;
  std::vector<std::vector<WaitRecord>> records_;
};

}  // namespace fastcomm::testing
