// Ranks in processes of their own with a device each, and what every collective between them
// has to give (engines/cuda/peer_collectives.h).
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "engines/cuda/peer_collectives.h"
#include "ipc_world.h"
#include "random_values.h"
#include "reference_plain.h"
#include "reference_tree.h"
#include "transport/ipc/device_memory.h"

namespace fastcomm::testing {

/// Messages over the sockets of a test's ranks.
class Hosts final : public HostExchange {
 public:
  explicit Hosts(const IpcRank& self) : self_(self) {}
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

using Bytes = std::vector<char>;

/// Memory of the current device.
inline char* upload(const Bytes& bytes, cudaStream_t stream) {
  char* const memory = device_memory(bytes.size() + 16);
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

/// FC_TEST_SLOT_BYTES: so much is done in one launch.
inline PeerCollectives::Options small(uint32_t timeout_ms = 60'000) {
  PeerCollectives::Options options;
  const char* const slot = std::getenv("FC_TEST_SLOT_BYTES");
  options.slot_bytes = slot == nullptr ? 0 : std::strtoull(slot, nullptr, 10);
  options.channels = 2;
  options.area_bytes = 768;
  options.bounds.timeout_ns = uint64_t{timeout_ms} * 1'000'000;
  return options;
}

/// A rank of a group, with a stream for each channel.
class Rank {
 public:
  explicit Rank(const IpcRank& self, PeerCollectives::Options options = small())
      : self(self),
        hosts(self),
        device(self.rank % device_count()),
        windows(hosts, self.rank, std::make_unique<DeviceMemory>(device),
                PeerCollectives::window_bytes(options, self.size())),
        collectives(windows, options) {
    FC_CUDA(cudaSetDevice(device), "a test");
    for (int c = 0; c < options.channels; ++c) streams.push_back(make_stream());
    memory_stream = make_stream();
  }

  void wait_for_all() const {
    for (const cudaStream_t stream : streams) wait(stream);
  }
  WaitFailure failure(int channel = 0) const {
    return static_cast<WaitFailure>(load_flag(&collectives.record(channel).wait.failure));
  }
  std::string text(int channel = 0) const {
    return describe_failure(collectives.record(channel), self.rank);
  }
  void leave() {
    wait_for_all();
    windows.leave(hosts);
  }

  const IpcRank& self;
  Hosts hosts;
  const int device;
  DeviceWindows windows;
  PeerCollectives collectives;
  std::vector<cudaStream_t> streams;
  cudaStream_t memory_stream = nullptr;  // so that who uploads waits for no operation
};

/// An operation of all ranks, and what comes of it: inputs[rank][part], expected[rank][part].
struct Operation {
  Call call;  // without memory
  std::vector<std::vector<Bytes>> inputs;
  std::vector<std::vector<Bytes>> expected;
  // This rank's:
  std::vector<char*> sources;
  std::vector<char*> results;
};

constexpr OpKind kKinds[] = {OpKind::kAllReduce, OpKind::kReduce,   OpKind::kReduceScatter,
                             OpKind::kAllGather, OpKind::kGather,   OpKind::kBroadcast,
                             OpKind::kScatter,   OpKind::kAllToAll, OpKind::kBarrier};

inline bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

constexpr ReduceOp kOps[] = {ReduceOp::kSum,     ReduceOp::kAvg, ReduceOp::kPremulSum,
                             ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

/// The definition of every reduction.
inline Bytes reduced(const Call& call, const std::vector<Bytes>& inputs) {
  if (call.op == ReduceOp::kSum || call.op == ReduceOp::kAvg || call.op == ReduceOp::kPremulSum) {
    const int divisor = call.op == ReduceOp::kAvg ? static_cast<int>(inputs.size()) : 1;
    return reference::reduce(call.dtype, call.dtype, inputs, {divisor, 1, call.factor});
  }
  return reference::reduce_plain(call.dtype, call.op, inputs);
}

/// The definition of every operation.
inline Operation make_operation(OpKind kind, DType dtype, uint64_t count, ReduceOp op, int size,
                                std::mt19937_64& random) {
  Operation made;
  Call& call = made.call;
  call.kind = kind;
  call.dtype = dtype;
  call.count = kind == OpKind::kBarrier ? 0 : count;
  if (reduces(kind)) call.op = op;
  if (call.op == ReduceOp::kPremulSum) call.factor = 1.0 / 3;
  const bool rooted = kind == OpKind::kReduce || kind == OpKind::kGather ||
                      kind == OpKind::kBroadcast || kind == OpKind::kScatter;
  if (rooted) call.root = static_cast<int>(random() % size);
  const bool in_parts =
      kind == OpKind::kReduceScatter || kind == OpKind::kScatter || kind == OpKind::kAllToAll;
  made.inputs.resize(size);
  for (auto& parts : made.inputs) {
    for (int part = 0; part < (in_parts ? size : 1); ++part) {
      parts.push_back(random_values(dtype, count, random));
    }
  }
  const auto part_of_all = [&](int part) {
    std::vector<Bytes> all;
    for (const auto& parts : made.inputs) all.push_back(parts[part]);
    return all;
  };
  made.expected.resize(size);
  for (int rank = 0; rank < size; ++rank) {
    const bool there = !rooted || rank == call.root;
    auto& expected = made.expected[rank];
    switch (kind) {
      case OpKind::kAllReduce:
      case OpKind::kReduce:
        if (there) expected = {reduced(call, part_of_all(0))};
        break;
      case OpKind::kReduceScatter:
        expected = {reduced(call, part_of_all(rank))};
        break;
      case OpKind::kAllGather:
      case OpKind::kGather:
        if (there) expected = part_of_all(0);
        break;
      case OpKind::kBroadcast:
        expected = {made.inputs[call.root][0]};
        break;
      case OpKind::kScatter:
        expected = {made.inputs[call.root][rank]};
        break;
      case OpKind::kBarrier:
        break;
      default:
        expected = part_of_all(rank);
    }
  }
  return made;
}
inline Operation make_operation(OpKind kind, DType dtype, uint64_t count, bool average, int size,
                                std::mt19937_64& random) {
  return make_operation(kind, dtype, count, average ? ReduceOp::kAvg : ReduceOp::kSum, size,
                        random);
}

/// Enqueues this rank's part. In place where the operation has a place for it.
template <class AnyRank>
void enqueue(AnyRank& rank, Operation& operation, int channel, bool in_place) {
  Call& call = operation.call;
  const int own = rank.self.rank;
  for (const Bytes& part : operation.inputs[own]) {
    operation.sources.push_back(upload(part, rank.memory_stream));
  }
  const size_t bytes = call.bytes();
  for (size_t i = 0; i < operation.expected[own].size(); ++i) {
    operation.results.push_back(upload(Bytes(bytes, 0x55), rank.memory_stream));
  }
  call.input = operation.sources[0];
  call.inputs.assign(operation.sources.begin(), operation.sources.end());
  if (call.kind == OpKind::kBroadcast) {
    if (call.root == own) operation.results[0] = operation.sources[0];
  } else if (in_place && call.kind == OpKind::kAllReduce) {
    operation.results[0] = operation.sources[0];
  } else if (in_place && call.kind == OpKind::kReduceScatter) {
    operation.results[0] = operation.sources[own];
  } else if (in_place && call.kind == OpKind::kAllGather) {
    operation.results[own] = operation.sources[0];
  }
  call.output = operation.results.empty() ? nullptr : operation.results[0];
  call.outputs.assign(operation.results.begin(), operation.results.end());
  rank.collectives.enqueue(call, channel, rank.streams[channel]);
}

template <class AnyRank>
void check(const AnyRank& rank, const Operation& operation, int channel) {
  const auto& expected = operation.expected[rank.self.rank];
  for (size_t i = 0; i < expected.size(); ++i) {
    const Bytes found = download(operation.results[i], expected[i].size(), rank.streams[channel]);
    EXPECT(found == expected[i], "rank ", rank.self.rank, " of ", rank.self.size(), ", result ", i,
           " of ", describe_call(make_header(operation.call, 0, 0)));
  }
}

}  // namespace fastcomm::testing
