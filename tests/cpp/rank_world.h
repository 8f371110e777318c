// Ranks as threads of one process, each with a communicator and a progress thread of its own.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engines/cpu/communicator.h"
#include "engines/cpu/progress_thread.h"
#include "transport/local/thread_transport.h"

namespace fastcomm::testing {

/// What a process has in shared memory: here one per rank, for all groups.
struct Bells {
  std::array<Doorbell, kMaxRanks> bells{};
  std::array<std::atomic<bool>, kMaxRanks> dead{};
  std::function<void(int)> before_death_is_read;  // with the peer that is looked at
  std::mutex mutex;
  std::vector<std::pair<uint64_t, size_t>> quarantine;  // by every rank
};

/// A group of threads that rings the doorbells of `bells` and believes its deaths.
class RankGroup final : public Transport {
 public:
  RankGroup(std::unique_ptr<Transport> inner, std::shared_ptr<Bells> bells)
      : inner_(std::move(inner)), bells_(std::move(bells)) {
    view_ = inner_->view();
    for (int peer = 0; peer < size(); ++peer) {
      control_blocks_[peer] = &inner_->control_block(peer);
      doorbells_[peer] = &bells_->bells[peer];
    }
  }
  void reserve_scratch(size_t) override {}
  void reserve_part(size_t, size_t) override {}
  bool readable(int, size_t, size_t) const override { return true; }
  /// By chance most addresses pass for shared memory and some do not: both kinds occur.
  uint64_t locate(const void* data, size_t bytes) const override {
    return reinterpret_cast<uint64_t>(data) / 64 % 8 != 0 ? inner_->locate(data, bytes)
                                                          : kNotShared;
  }
  char* reach(int peer, uint64_t where, size_t bytes) const override {
    return inner_->reach(peer, where, bytes);
  }
  void quarantine(uint64_t where, size_t bytes) override {
    const std::lock_guard<std::mutex> lock(bells_->mutex);
    bells_->quarantine.emplace_back(where, bytes);
  }
  bool lost(int peer) const override {
    const auto before = bells_->before_death_is_read;  // a copy: it may replace itself
    if (before) before(peer);
    return bells_->dead[peer].load();
  }
  std::function<bool()> peers_are_gone() const override { return inner_->peers_are_gone(); }
  std::string describe(int rank) const override { return inner_->describe(rank); }
  bool oversubscribed() const override { return inner_->oversubscribed(); }

 private:
  std::unique_ptr<Transport> inner_;
  std::shared_ptr<Bells> bells_;
};

/// Slots so small that a few kilobytes are many blocks.
inline ScratchLayout small_layout(int size) { return scratch_layout({256, 512, 2048}, size); }

/// Whether a world's ranks send and receive: rings are large for tests of many groups.
enum class Rings : uint8_t { kNone, kSome };

/// `groups` groups of the same `size` ranks. Flags start at `first_base`.
class RankWorld {
 public:
  explicit RankWorld(int size, int groups = 1, uint32_t first_base = 0,
                     ScratchLayout layout = ScratchLayout{}, Rings rings = Rings::kNone)
      : size_(size), bells_(std::make_shared<Bells>()), communicators_(groups) {
    if (layout.block_bytes == 0) layout = small_layout(size);
    for (int rank = 0; rank < size; ++rank) {
      progress_threads_.push_back(std::make_unique<ProgressThread>(bells_->bells[rank]));
    }
    GroupTraits traits;
    traits.size = size;
    traits.native = true;
    traits.transport = "threads";
    traits.layout = layout;
    for (auto& group : communicators_) {
      auto inner = make_thread_transports(
          size, layout.total() + (rings == Rings::kSome ? rings_bytes(size) : 0));
      for (int rank = 0; rank < size; ++rank) *inner[rank]->view().flags[rank] = first_base;
      for (int rank = 0; rank < size; ++rank) {
        auto peers = std::make_unique<RankGroup>(std::move(inner[rank]), bells_);
        group.push_back(
            std::make_shared<Communicator>(std::move(peers), traits, *progress_threads_[rank]));
      }
    }
  }

  int size() const { return size_; }
  Communicator& at(int rank, int group = 0) { return *communicators_[group][rank]; }
  Bells& bells() { return *bells_; }
  /// From now on operations move only when the test moves them.
  void stop_progress() {
    for (auto& thread : progress_threads_) thread->stop();
  }

  /// Calls `body(rank)` on one thread per rank and waits for all.
  template <class Body>
  void run(const Body& body) const {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size_; ++rank) ranks.emplace_back([&body, rank] { body(rank); });
    for (std::thread& rank : ranks) rank.join();
  }

 private:
  int size_;
  std::shared_ptr<Bells> bells_;
  std::vector<std::unique_ptr<ProgressThread>> progress_threads_;  // outlive the communicators
  std::vector<std::vector<std::shared_ptr<Communicator>>> communicators_;
};

inline constexpr auto kTimeout = Milliseconds(60000);

/// Carries a call out, in the caller or asynchronously.
inline std::shared_ptr<Operation> carry_out(Communicator& group, const Call& call, bool async) {
  if (!async) return group.run(call, kTimeout, nullptr);
  auto operation = group.start(call, kTimeout, nullptr);
  group.wait(*operation, Deadline::max(), nullptr);
  return operation;
}

inline Call barrier_call() {
  Call call;
  call.kind = OpKind::kBarrier;
  return call;
}

/// SUM of `count` floats in place.
inline Call sum_call(float* data, uint64_t count) {
  Call call;
  call.kind = OpKind::kAllReduce;
  call.dtype = DType::kFloat32;
  call.op = ReduceOp::kSum;
  call.count = count;
  call.input = data;
  call.output = data;
  return call;
}

inline Call broadcast_call(float* data, uint64_t count, int root) {
  Call call;
  call.kind = OpKind::kBroadcast;
  call.dtype = DType::kFloat32;
  call.root = root;
  call.count = count;
  call.output = data;
  return call;
}

}  // namespace fastcomm::testing
