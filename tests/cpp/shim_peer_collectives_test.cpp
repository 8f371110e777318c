// Collectives of processes with a simulated device each (engines/cuda/peer_collectives.h): bits, order,
// and every way to fail.
//
//   shim_peer_collectives_test [CASE [SEED]]
//
// CASE: bits | two | one_queue | one | mismatch | late | abort | death | graph | unmapped. one is a single
// operation of two ranks, for negative controls.
#include <map>

#include "engines/cuda/peer_collectives.h"
#include "ipc_world.h"
#include "random_values.h"
#include "reference_tree.h"

namespace fastcomm::testing {
namespace {

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
char* upload(const Bytes& bytes, cudaStream_t stream) {
  char* const memory = device_memory(bytes.size() + 16);
  if (!bytes.empty()) {
    FC_CUDA(cudaMemcpyAsync(memory, bytes.data(), bytes.size(), cudaMemcpyDefault, stream), "up");
  }
  wait(stream);
  return memory;
}
Bytes download(const void* memory, size_t bytes, cudaStream_t stream) {
  Bytes all(bytes);
  if (bytes != 0) {
    FC_CUDA(cudaMemcpyAsync(all.data(), memory, bytes, cudaMemcpyDefault, stream), "down");
  }
  wait(stream);
  return all;
}

PeerCollectives::Options small(uint32_t timeout_ms = 60'000) {
  PeerCollectives::Options options;
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
        device(self.rank % 2),
        windows(hosts, self.rank, device, PeerCollectives::window_bytes(options, self.size())),
        collectives(windows, options) {
    FC_CUDA(cudaSetDevice(device), "a test");
    for (int c = 0; c < options.channels; ++c) streams.push_back(make_stream());
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

constexpr OpKind kKinds[] = {OpKind::kAllReduce, OpKind::kReduce,  OpKind::kReduceScatter,
                             OpKind::kAllGather, OpKind::kGather,  OpKind::kBroadcast,
                             OpKind::kScatter,   OpKind::kAllToAll};

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

/// The definition of every operation.
Operation make_operation(OpKind kind, DType dtype, uint64_t count, bool average, int size,
                         std::mt19937_64& random) {
  Operation made;
  Call& call = made.call;
  call.kind = kind;
  call.dtype = dtype;
  call.count = count;
  if (reduces(kind)) call.op = average ? ReduceOp::kAvg : ReduceOp::kSum;
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
  const int divisor = average ? size : 1;
  made.expected.resize(size);
  for (int rank = 0; rank < size; ++rank) {
    const bool there = !rooted || rank == call.root;
    auto& expected = made.expected[rank];
    switch (kind) {
      case OpKind::kAllReduce:
      case OpKind::kReduce:
        if (there) expected = {reference::reduce(dtype, part_of_all(0), divisor)};
        break;
      case OpKind::kReduceScatter:
        expected = {reference::reduce(dtype, part_of_all(rank), divisor)};
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
      default:
        expected = part_of_all(rank);
    }
  }
  return made;
}

/// Enqueues this rank's part. In place where the operation has a place for it.
void enqueue(Rank& rank, Operation& operation, int channel, bool in_place) {
  Call& call = operation.call;
  const int own = rank.self.rank;
  const cudaStream_t stream = rank.streams[channel];
  for (const Bytes& part : operation.inputs[own]) operation.sources.push_back(upload(part, stream));
  const size_t bytes = call.bytes();
  for (size_t i = 0; i < operation.expected[own].size(); ++i) {
    operation.results.push_back(upload(Bytes(bytes, 0x55), stream));
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
  rank.collectives.enqueue(call, channel, stream);
}

void check(const Rank& rank, const Operation& operation, int channel) {
  const auto& expected = operation.expected[rank.self.rank];
  for (size_t i = 0; i < expected.size(); ++i) {
    const Bytes found = download(operation.results[i], expected[i].size(), rank.streams[channel]);
    EXPECT(found == expected[i], "rank ", rank.self.rank, " of ", rank.self.size(), ", result ", i,
           " of ", describe_call(make_header(operation.call, 0, 0)));
  }
}

/// Operations back to back, on the streams of two channels.
void test_bits(uint64_t seed) {
  for (const int size : {2, 3, 4}) {
    const auto body = [&](const IpcRank& self) {
      Rank rank(self);
      std::mt19937_64 random(seed * 10 + size);  // the same on all ranks
      std::vector<Operation> all;
      for (const OpKind kind : kKinds) {
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          const uint64_t count = random() % 4 == 0 ? random() % 3 : random() % 500;
          all.push_back(make_operation(kind, dtype, count, random() % 2 == 0, size, random));
        }
      }
      std::shuffle(all.begin(), all.end(), random);
      for (size_t i = 0; i < all.size(); ++i) enqueue(rank, all[i], i % 2, random() % 2 == 0);
      rank.wait_for_all();
      for (size_t i = 0; i < all.size(); ++i) check(rank, all[i], i % 2);
      EXPECT(rank.text(0).empty() && rank.text(1).empty(), rank.text(0), rank.text(1));
      rank.leave();
    };
    run_ipc_ranks(size, body, /*hidden=*/size == 2, /*queues=*/size == 3 ? 1 : 0);
  }
}

Operation sum_of(int size, uint64_t count) {
  std::mt19937_64 random(5);
  return make_operation(OpKind::kAllReduce, DType::kFloat32, count, false, size, random);
}

/// Two streams whose operations come in opposite orders.
void test_two(uint64_t seed) {
  run_ipc_ranks(2, [&](const IpcRank& self) {
    Rank rank(self);
    std::mt19937_64 random(seed);
    std::vector<Operation> all;
    for (int i = 0; i < 8; ++i) {
      all.push_back(make_operation(OpKind::kAllReduce, DType::kFloat32, 300, false, 2, random));
    }
    for (int i = 0; i < 8; i += 2) {
      const int first = self.rank == 0 ? 0 : 1;
      enqueue(rank, all[i + first], first, false);
      enqueue(rank, all[i + 1 - first], 1 - first, false);
    }
    rank.wait_for_all();
    for (int i = 0; i < 8; ++i) check(rank, all[i], i % 2);
    rank.leave();
  });
}

/// The same where all streams share one queue: nobody can come, and it ends.
void test_one_queue(uint64_t) {
  const auto body = [](const IpcRank& self) {
    Rank rank(self, small(300));
    std::vector<Operation> all = {sum_of(2, 30), sum_of(2, 30)};
    for (const int channel : {self.rank, 1 - self.rank}) {
      enqueue(rank, all[channel], channel, false);
    }
    rank.wait_for_all();
    for (const int channel : {0, 1}) {
      EXPECT(rank.failure(channel) != WaitFailure::kNone, "channel ", channel);
    }
    self.meet();
    rank.leave();
  };
  run_ipc_ranks(2, body, /*hidden=*/false, /*queues=*/1);
}

void test_one(uint64_t seed) {
  run_ipc_ranks(2, [&](const IpcRank& self) {
    Rank rank(self);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 2; ++i) {
      Operation one = make_operation(OpKind::kAllReduce, DType::kFloat32, 100, false, 2, random);
      enqueue(rank, one, 0, false);
      rank.wait_for_all();
      self.meet();
    }
    rank.leave();
  });
}

bool all_nan(const Bytes& bytes) {
  for (size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
    float value;
    std::memcpy(&value, &bytes[i], sizeof(value));
    if (!std::isnan(value)) return false;
  }
  return true;
}

/// One operation that fails: NaN where it has results, and so every later one at once.
void expect_failure(Rank& rank, Operation& operation, const std::string& words) {
  enqueue(rank, operation, 0, false);
  rank.wait_for_all();
  const size_t bytes = operation.call.bytes();
  EXPECT(rank.text().find(words) != std::string::npos, "rank ", rank.self.rank, ": ", rank.text());
  EXPECT(all_nan(download(operation.results[0], bytes, rank.streams[0])), "the results are NaN");
  std::mt19937_64 random(1);
  Operation later =
      make_operation(OpKind::kAllReduce, DType::kFloat32, 7, false, rank.self.size(), random);
  enqueue(rank, later, 0, false);
  rank.wait_for_all();
  EXPECT(all_nan(download(later.results[0], 28, rank.streams[0])), "and those of what follows");
  Operation other =
      make_operation(OpKind::kAllReduce, DType::kInt32, 7, false, rank.self.size(), random);
  enqueue(rank, other, 0, false);
  rank.wait_for_all();
}

void test_mismatch(uint64_t) {
  run_ipc_ranks(3, [](const IpcRank& self) {
    Rank rank(self, small(5000));
    Operation good = sum_of(3, 50);
    enqueue(rank, good, 0, false);
    rank.wait_for_all();
    check(rank, good, 0);
    self.meet();
    Operation odd = sum_of(3, self.rank == 1 ? 1001 : 1000);
    enqueue(rank, odd, 0, false);
    rank.wait_for_all();
    EXPECT(rank.failure() == WaitFailure::kMismatch, "rank ", self.rank, ": ", rank.text());
    const std::string own = concat("rank ", self.rank, " called all_reduce(sum, float32, ",
                                   self.rank == 1 ? 1001 : 1000, " elements), sequence 1");
    EXPECT(rank.text().find(own) == 0, rank.text());
    EXPECT(
        rank.text().find(self.rank == 1 ? "1000 elements" : "rank 1 called") != std::string::npos,
        rank.text());
    EXPECT(all_nan(download(odd.results[0], odd.call.bytes(), rank.streams[0])), "NaN");
    // The other channel goes on.
    Operation beside = sum_of(3, 50);
    enqueue(rank, beside, 1, false);
    rank.wait_for_all();
    check(rank, beside, 1);
    rank.leave();
  });
}

/// A rank does not come; those that have waited tell the one that comes too late.
void test_late(uint64_t) {
  run_ipc_ranks(3, [](const IpcRank& self) {
    Rank rank(self, small(300));
    Operation missed = sum_of(3, 500);
    if (self.rank != 2) {
      // The first one's bound runs out; the other one's may, or it finds out by the first one.
      expect_failure(rank, missed, ", rank 2 has not come");
      EXPECT(rank.failure() == WaitFailure::kTimeout || rank.failure() == WaitFailure::kPeerFailed,
             rank.text());
    }
    self.meet();
    if (self.rank == 2) expect_failure(rank, missed, "rank 0 has given up");
    self.meet();
    rank.leave();
  });
}

void test_abort(uint64_t) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    auto options = small();
    void* word = nullptr;
    FC_CUDA(cudaHostAlloc(&word, 64, cudaHostAllocMapped), "a test");
    *static_cast<uint32_t*>(word) = 0;
    options.bounds.abort_word = static_cast<uint32_t*>(word);
    Rank rank(self, options);
    if (self.rank == 0) {
      std::thread later([word] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        store_flag(static_cast<uint32_t*>(word), 1);
      });
      Operation alone = sum_of(2, 10);
      expect_failure(rank, alone, "told to give up");
      later.join();
    }
    self.meet();
    rank.leave();
  });
}

/// A rank is killed with its operations under way.
void test_death(uint64_t) {
  run_ipc_ranks(3, [](const IpcRank& self) {
    Rank rank(self, small(500));
    for (int i = 0; i < 3; ++i) {
      Operation operation = sum_of(3, 2000);
      enqueue(rank, operation, 0, false);
      if (self.rank == 2 && i == 1) std::raise(SIGKILL);
    }
    rank.wait_for_all();
    const WaitFailure why = rank.failure();
    EXPECT(why == WaitFailure::kTimeout || why == WaitFailure::kPeerFailed, rank.text());
  });
}

/// A captured operation counts on, between those that are not.
void test_graph(uint64_t seed) {
  run_ipc_ranks(2, [&](const IpcRank& self) {
    Rank rank(self);
    std::mt19937_64 random(seed);
    const cudaStream_t stream = rank.streams[0];
    Operation captured = make_operation(OpKind::kAllReduce, DType::kFloat32, 300, false, 2, random);
    Call call = captured.call;
    const Bytes& own = captured.inputs[self.rank][0];
    char* const input = upload(own, stream);
    char* const output = upload(Bytes(own.size(), 0), stream);
    call.input = input;
    call.output = output;
    FC_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a test");
    rank.collectives.enqueue(call, 0, stream);
    cudaGraph_t graph = nullptr;
    FC_CUDA(cudaStreamEndCapture(stream, &graph), "a test");
    cudaGraphExec_t exec = nullptr;
    FC_CUDA(cudaGraphInstantiate(&exec, graph, 0), "a test");
    for (int i = 0; i < 5; ++i) {
      set(output, own.size(), stream);
      FC_CUDA(cudaGraphLaunch(exec, stream), "a test");
      EXPECT(download(output, own.size(), stream) == captured.expected[self.rank][0], "replay ", i);
      Operation eager = make_operation(kKinds[random() % 8], DType::kFloat32, 200, true, 2, random);
      enqueue(rank, eager, 0, false);
      check(rank, eager, 0);
    }
    EXPECT(rank.text().empty(), rank.text());
    rank.leave();
  });
}

/// Where one rank cannot map another's window, all say so, and nothing is left mapped.
void test_unmapped(uint64_t) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    for (int culprit = 0; culprit < 2; ++culprit) {
      shim::Ipc::get().supported = self.rank != culprit;
      std::string text;
      try {
        Rank rank(self);
      } catch (const Error& error) {
        text = error.what();
      }
      const std::string words = concat("rank ", culprit, ": cudaIpcGetMemHandle: operation not");
      EXPECT(text.find(words) != std::string::npos, "rank ", self.rank, ": ", text);
    }
    shim::Ipc::get().supported = true;
    Rank rank(self);
    Operation good = sum_of(2, 100);
    enqueue(rank, good, 0, false);
    check(rank, good, 0);
    rank.leave();
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"bits", test_bits},
                    {"two", test_two},
                    {"one_queue", test_one_queue},
                    {"one", test_one},
                    {"mismatch", test_mismatch},
                    {"late", test_late},
                    {"abort", test_abort},
                    {"death", test_death},
                    {"graph", test_graph},
                    {"unmapped", test_unmapped}});
}
