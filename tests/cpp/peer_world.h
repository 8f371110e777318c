// Ranks in processes of their own with a device each, and what every collective between them must
// give (engines/cuda/peer_collectives.h).
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "coll/describe_call.h"
#include "collective.h"
#include "engines/cuda/failure_text.h"
#include "engines/cuda/peer_collectives.h"
#include "ipc_world.h"
#include "transport/ipc/device_ways.h"

namespace fastcomm::testing {

/// Messages over the sockets of a test's ranks.
class Messages final : public OutOfBand {
 public:
  explicit Messages(const IpcRank& self) : self_(self) {}
  std::vector<std::string> all_gather(const std::string& own) override {
    const std::vector<size_t> sizes = self_.exchange(own.size());
    for (int peer = 0; peer < self_.size(); ++peer) {
      if (peer != self_.rank && !own.empty()) {
        EXPECT(write(self_.socket(peer), own.data(), own.size()) == ssize_t(own.size()), "sent");
      }
    }
    std::vector<std::string> all;
    for (int peer = 0; peer < self_.size(); ++peer) {
      std::string text(sizes[peer], '\0');
      if (peer == self_.rank) {
        text = own;
      } else if (!text.empty()) {
        EXPECT(
            recv(self_.socket(peer), text.data(), text.size(), MSG_WAITALL) == ssize_t(text.size()),
            "received");
      }
      all.push_back(std::move(text));
    }
    return all;
  }

 private:
  const IpcRank& self_;
};

/// Memory of the current device, or `there`.
inline char* upload(const Bytes& bytes, cudaStream_t stream, char* there = nullptr) {
  char* const memory = there == nullptr ? device_memory(bytes.size() + 16) : there;
  if (!bytes.empty()) {
    FC_CUDA(cudaMemcpyAsync(memory, bytes.data(), bytes.size(), cudaMemcpyDefault, stream), "up");
  }
  wait(stream);
  return memory;
}
inline Bytes download(const void* memory, size_t bytes, cudaStream_t stream) {
  Bytes all(bytes);
  if (bytes != 0) {
    FC_CUDA(cudaMemcpyAsync(all.data(), memory, bytes, cudaMemcpyDefault, stream), "down");
  }
  wait(stream);
  return all;
}

/// FC_TEST_SLOT_BYTES: that much is done in one launch.
inline PeerCollectives::Options small(uint32_t timeout_ms = 60'000) {
  PeerCollectives::Options options;
  const char* const slot = std::getenv("FC_TEST_SLOT_BYTES");
  options.slot_bytes = slot == nullptr ? 0 : std::strtoull(slot, nullptr, 10);
  options.channels = 2;
  options.area_bytes = 768;
  options.slices_from = 400;
  options.bounds.timeout_ns = uint64_t{timeout_ms} * 1'000'000;
  return options;
}

/// Memory of a rank's pool for a test's tensors, chosen independently of the other ranks.
class InPool {
 public:
  InPool(PeerPool& pool, uint64_t seed) : pool_(pool), random_(seed), used_(2) {
    const char* const wanted = std::getenv("FC_TEST_POOL");
    if (wanted != nullptr) wanted_ = wanted;
  }

  static constexpr uint64_t kSegmentBytes = 512 << 10;
  /// Two segments, where FC_TEST_POOL is "some" or "all". Collective.
  template <class Memory>
  void make(OutOfBand& out_of_band, const Memory& memory) {
    if (wanted_.empty()) return;
    for (int i = 0; i < 2; ++i) pool_.grow(out_of_band, memory(), kSegmentBytes);
  }
  /// nullptr: not there. With "some", it may begin off a pack's boundary.
  char* take(uint64_t bytes) {
    const bool some = wanted_ == "some";
    if (pool_.segments() == 0 || (some && random_() % 4 == 0)) return nullptr;
    const int segment = static_cast<int>(random_() % used_.size());
    const uint64_t at = used_[segment] + (some && random_() % 4 == 0 ? 8 : 0);
    if (at + bytes > kSegmentBytes) return nullptr;
    used_[segment] = (at + bytes + 63) / 64 * 64;
    return pool_.begin(segment) + at;
  }

 private:
  PeerPool& pool_;
  std::string wanted_;
  std::mt19937_64 random_;
  std::vector<uint64_t> used_;  // of each segment
};

/// FC_TEST_WINDOWS: how devices reach them; as FASTCOMM_IPC.
inline DeviceWay way_of_environment() {
  const char* const name = std::getenv("FC_TEST_WINDOWS");
  return name == nullptr ? DeviceWay::kHandle : device_ways(name).at(0);
}

/// A rank of a group, with a stream for each channel.
class Rank {
 public:
  explicit Rank(const IpcRank& self, PeerCollectives::Options options = small(),
                DeviceWay way = way_of_environment())
      : self(self),
        out_of_band(self),
        device(self.rank % device_count()),
        windows(out_of_band, self.rank, device_memory(way, device),
                PeerCollectives::window_bytes(options, self.size())),
        pool(device, self.rank, self.size()),
        in_pool(pool, self.rank),
        collectives(windows, options, &pool) {
    FC_CUDA(cudaSetDevice(device), "a test");
    for (int c = 0; c < options.channels; ++c) streams.push_back(make_stream());
    memory_stream = make_stream();
    in_pool.make(out_of_band, [&] { return device_memory(way, device); });
  }

  void wait_for_all() const {
    for (const cudaStream_t stream : streams) wait(stream);
  }
  WaitFailure failure(int channel = 0) const {
    return static_cast<WaitFailure>(load_flag(&collectives.record(channel).wait.failure));
  }
  std::string text(int channel = 0) const {
    return describe_failure(collectives.record(channel), self.rank, self.size()).text;
  }
  void leave() {
    wait_for_all();
    pool.leave(out_of_band);
    windows.leave(out_of_band);
  }

  const IpcRank& self;
  Messages out_of_band;
  const int device;
  DeviceWindows windows;
  PeerPool pool;
  InPool in_pool;
  PeerCollectives collectives;
  std::vector<cudaStream_t> streams;
  cudaStream_t memory_stream = nullptr;  // so that uploads wait for no operation
};

/// An operation of all ranks, and this rank's memory for it.
struct Operation : Collective, Placed {};

constexpr OpKind kKinds[] = {
    OpKind::kAllReduce, OpKind::kReduce,         OpKind::kReduceScatter, OpKind::kAllGather,
    OpKind::kGather,    OpKind::kBroadcast,      OpKind::kScatter,       OpKind::kAllToAll,
    OpKind::kBarrier,   OpKind::kFusedAllReduce, OpKind::kGatherShards,  OpKind::kAllGatherUneven};

inline Operation make_operation(OpKind kind, DType dtype, uint64_t count, ReduceOp op, int size,
                                std::mt19937_64& random) {
  return {make_collective(kind, dtype, count, op, size, random), {}};
}
inline Operation make_operation(OpKind kind, DType dtype, uint64_t count, bool average, int size,
                                std::mt19937_64& random) {
  return make_operation(kind, dtype, count, average ? ReduceOp::kAvg : ReduceOp::kSum, size,
                        random);
}

/// bfloat16 as float32, or any type as it is.
inline Bytes as_type(DType to, DType from, const Bytes& bytes) {
  if (to == from) return bytes;
  return reference::reduce(from, to, {bytes}, {1, 1, 1});
}

/// Puts a message into pieces, whose types and cuts no other rank knows; some have their result
/// elsewhere.
template <class AnyRank>
void cut(AnyRank& rank, Operation& operation, std::mt19937_64& random) {
  Call& call = operation.call;
  const Bytes& whole = operation.inputs[rank.self.rank][0];
  const uint64_t element = dtype_size(call.dtype);
  MessagePieces pieces;
  for (uint64_t done = 0; done < call.count;) {
    const uint64_t count = std::min(call.count - done, random() % 70);
    const auto type = [&] {
      return call.dtype == DType::kBFloat16 && random() % 2 == 0 ? DType::kFloat32 : call.dtype;
    };
    const DType from = type();
    const DType to = random() % 2 == 0 ? from : type();
    const Bytes part(whole.begin() + done * element, whole.begin() + (done + count) * element);
    char* const source = upload(as_type(from, call.dtype, part), rank.memory_stream);
    const Bytes empty(count * dtype_size(to), 0x55);
    char* const result =
        to == from && random() % 2 == 0 ? source : upload(empty, rank.memory_stream);
    operation.sources.push_back(source);
    operation.results.push_back(result);
    pieces.push_back({source, from, result, to, count});
    done += count;
  }
  call.pieces = std::make_shared<const MessagePieces>(std::move(pieces));
}

/// Puts what each rank gives into pieces of one tensor here, cut as no other rank knows.
template <class AnyRank>
void cut_shards(AnyRank& rank, Operation& operation, std::mt19937_64& random) {
  Call& call = operation.call;
  const uint64_t element = dtype_size(call.dtype);
  ShardPieces shards;
  for (int giver = 0; giver < rank.self.size(); ++giver) {
    const Bytes& message = operation.inputs[giver][0];
    const bool own = giver == rank.self.rank;
    char* const tensor = upload(own ? message : Bytes(message.size(), 0x55), rank.memory_stream);
    operation.results.push_back(tensor);
    MessagePieces pieces;
    for (uint64_t done = 0; done < message.size();) {
      const uint64_t count = std::min(message.size() - done, random() % 70 * element);
      pieces.push_back({tensor + done, call.dtype, tensor + done, call.dtype, count / element});
      done += count;
    }
    shards.push_back(std::move(pieces));
  }
  call.shards = std::make_shared<const ShardPieces>(std::move(shards));
}

/// Enqueues this rank's part. In place where the operation has a place for it.
template <class AnyRank>
void enqueue(AnyRank& rank, Operation& operation, int channel, bool in_place) {
  Call& call = operation.call;
  const int own = rank.self.rank;
  std::mt19937_64 of_rank(7 * call.count + own);
  Placed& placed = operation;
  if (call.kind == OpKind::kFusedAllReduce && of_rank() % 3 != 0) {
    cut(rank, operation, of_rank);
  } else if (call.kind == OpKind::kGatherShards) {
    cut_shards(rank, operation, of_rank);
  } else if (call.kind == OpKind::kAllToAll || call.kind == OpKind::kAllGatherUneven) {
    placed = place(operation, own, in_place,
                   [&](const Bytes& part, bool) { return upload(part, rank.memory_stream); });
    call.messages = messages_of(operation, own, placed);
  } else {
    // All inputs in one run, or each by itself.
    const auto& inputs = operation.inputs[own];
    char* run = rank.in_pool.take(inputs.size() * inputs[0].size());
    placed = place(operation, own, in_place, [&](const Bytes& part, bool is_input) {
      char* const there = is_input ? run : rank.in_pool.take(part.size());
      if (is_input && run != nullptr) run += part.size();
      return upload(part, rank.memory_stream, there);
    });
    set_memory(call, placed);
  }
  rank.collectives.enqueue(call, channel, rank.streams[channel]);
}

template <class AnyRank>
void check(const AnyRank& rank, const Operation& operation, int channel) {
  const auto& expected = operation.expected[rank.self.rank];
  if (operation.call.pieces != nullptr) {
    const Call& call = operation.call;
    Bytes all;
    for (const MessagePiece& piece : *call.pieces) {
      const Bytes found =
          download(piece.to, piece.count * dtype_size(piece.to_type), rank.streams[channel]);
      const Bytes part = as_type(call.dtype, piece.to_type, found);
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT(all == expected[0], "rank ", rank.self.rank, " of ", rank.self.size(), ", pieces of ",
           describe_call(make_header(call, 0, 0)));
    return;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const Bytes found = download(operation.results[i], expected[i].size(), rank.streams[channel]);
    EXPECT(found == expected[i], "rank ", rank.self.rank, " of ", rank.self.size(), ", result ", i,
           " of ", describe_call(make_header(operation.call, 0, 0)));
  }
}

}  // namespace fastcomm::testing
