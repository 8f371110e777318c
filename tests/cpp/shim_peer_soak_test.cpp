// Many repetitions between processes with a device each (engines/cuda/peer_collectives.h): graphs
// replayed between operations, memory that must not grow, and a rank that dies with kernels at
// work. Under the execution shim, or on a GPU, which the processes may share.
//
//   shim_peer_soak_test [CASE [SEED]]
//
// CASE: replays | replays_at_once | growth | death_in_a_wait | death_in_a_copy. FC_TEST_RANKS (2)
// are the processes of replays and growth, FC_TEST_ROUNDS the replays, or the operations.
#include <malloc.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "peer_world.h"

namespace fastcomm::testing {
namespace {

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
int ranks_wanted() { return static_cast<int>(number_of("FC_TEST_RANKS", 2)); }
uint64_t rounds_wanted(uint64_t otherwise) { return number_of("FC_TEST_ROUNDS", otherwise); }

/// What a graph does, on changing values: three kinds, with tensors of one size that stay where
/// they are.
class Repeated {
 public:
  static constexpr int kVariants = 3;

  Repeated(const Rank& rank, uint64_t seed) : stream_(rank.streams[0]) {
    const int own = rank.self.rank;
    const auto put = [&](const Bytes& part, bool) { return upload(part, stream_); };
    std::mt19937_64 random(seed);  // the same on all ranks
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather}) {
      for (int v = 0; v < kVariants; ++v) {
        const Collective made = make_collective(kind, DType::kFloat32, kBytes / sizeof(float),
                                                ReduceOp::kSum, rank.self.size(), random);
        const Placed placed = place(made, own, false, put);
        append(given_[v], placed.sources);
        for (const Bytes& part : made.expected[own]) append(expected_[v], part);
        if (v > 0) continue;
        calls_.push_back(made.call);
        const Placed memory = place(made, own, false, put);
        set_memory(calls_.back(), memory);
        append(sources_, memory.sources);
        append(results_, memory.results);
      }
    }
  }

  uint64_t bytes() const { return expected_[0].size(); }
  const Bytes& expected(int variant) const { return expected_[variant]; }
  void enqueue(Rank& rank) const {
    for (const Call& call : calls_) rank.collectives.enqueue(call, 0, stream_);
  }
  /// Called before and after the operations, or a graph of them.
  void give(int variant) const {
    for (size_t i = 0; i < sources_.size(); ++i) copy(sources_[i], given_[variant][i]);
  }
  void take(char* row) const {
    for (size_t i = 0; i < results_.size(); ++i) copy(row + i * kBytes, results_[i]);
  }

 private:
  static constexpr size_t kBytes = 304 * sizeof(float);

  template <class T>
  static void append(std::vector<T>& all, const std::vector<T>& more) {
    all.insert(all.end(), more.begin(), more.end());
  }
  void copy(char* to, const char* from) const {
    FC_CUDA(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream_), "a test");
  }

  cudaStream_t stream_;
  std::vector<Call> calls_;
  std::vector<char*> sources_, results_;
  std::vector<char*> given_[kVariants];
  Bytes expected_[kVariants];
};

/// Replays and operations one after the other, in random order: the bits of the definition each
/// time.
CASE(replays) {
  const uint64_t replays = rounds_wanted(kOnSimulatedDevices ? 40 : 1000);
  constexpr uint64_t kRows = 20;  // how often the host looks
  run_ipc_ranks(ranks_wanted(), [&](const IpcRank& self) {
    Rank rank(self);
    const cudaStream_t stream = rank.streams[0];
    const Repeated work(rank, seed);
    FC_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a test");
    work.enqueue(rank);
    cudaGraph_t graph = nullptr;
    FC_CUDA(cudaStreamEndCapture(stream, &graph), "a test");
    cudaGraphExec_t exec = nullptr;
    FC_CUDA(cudaGraphInstantiate(&exec, graph, 0), "a test");
    char* const rows = device_memory(kRows * work.bytes());
    std::mt19937_64 random(seed);  // the same on all ranks
    uint64_t wrong = 0, replayed = 0;
    while (replayed < replays) {
      int variants[kRows];
      for (uint64_t row = 0; row < kRows; ++row) {
        variants[row] = static_cast<int>(random() % Repeated::kVariants);
        work.give(variants[row]);
        if (random() % 5 == 0) {
          work.enqueue(rank);
        } else {
          FC_CUDA(cudaGraphLaunch(exec, stream), "a test");
          ++replayed;
        }
        work.take(rows + row * work.bytes());
      }
      for (uint64_t row = 0; row < kRows; ++row) {
        const Bytes found = download(rows + row * work.bytes(), work.bytes(), stream);
        wrong += found != work.expected(variants[row]);
      }
    }
    EXPECT(wrong == 0, "rank ", self.rank, ": ", wrong, " replays or operations are wrong");
    EXPECT(rank.text().empty(), rank.text());
    rank.leave();
  });
}

/// A graph of one operation.
cudaGraphExec_t graph_of(Rank& rank, const Operation& operation) {
  FC_CUDA(cudaStreamBeginCapture(rank.streams[0], cudaStreamCaptureModeThreadLocal), "a test");
  rank.collectives.enqueue(operation.call, 0, rank.streams[0]);
  cudaGraph_t graph = nullptr;
  FC_CUDA(cudaStreamEndCapture(rank.streams[0], &graph), "a test");
  cudaGraphExec_t exec = nullptr;
  FC_CUDA(cudaGraphInstantiate(&exec, graph, 0), "a test");
  return exec;
}

/// Graphs on two streams: one after the other they work; at once they are an error that says so.
CASE(replays_at_once) {
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kAllToAll}) {
    run_ipc_ranks(ranks_wanted(), [&](const IpcRank& self) {
      auto options = small();
      options.replayed = 0;
      Rank rank(self, options);
      const cudaStream_t first = rank.streams[0], second = make_stream();
      std::mt19937_64 random(seed);  // the same on all ranks
      std::vector<Operation> all;
      std::vector<cudaGraphExec_t> graphs;
      for (int i = 0; i < 2; ++i) {
        all.push_back(make_operation(kind, DType::kFloat32, 300, false, self.size(), random));
        enqueue(rank, all[i], 0, false);
        wait(first);
        graphs.push_back(graph_of(rank, all[i]));
      }
      cudaEvent_t between = nullptr;
      FC_CUDA(cudaEventCreateWithFlags(&between, cudaEventDisableTiming), "a test");
      for (int turn = 0; turn < 3; ++turn) {
        FC_CUDA(cudaGraphLaunch(graphs[0], first), "a test");
        FC_CUDA(cudaEventRecord(between, first), "a test");
        FC_CUDA(cudaStreamWaitEvent(second, between, 0), "a test");
        FC_CUDA(cudaGraphLaunch(graphs[1], second), "a test");
        FC_CUDA(cudaEventRecord(between, second), "a test");
        FC_CUDA(cudaStreamWaitEvent(first, between, 0), "a test");
      }
      wait(second);
      for (const Operation& each : all) check(rank, each, 0);
      EXPECT(rank.text().empty(), "one after the other: ", rank.text());
      self.meet();
      if (self.rank == 0) {
        // One waits for the other ranks when the second one finds it there.
        FC_CUDA(cudaGraphLaunch(graphs[0], first), "a test");
        FC_CUDA(cudaGraphLaunch(graphs[1], second), "a test");
        wait(first);
        wait(second);
        EXPECT(rank.failure() == WaitFailure::kReplays, rank.text());
        EXPECT(rank.text().find("replayed at once on rank 0") != std::string::npos, rank.text());
        take_hazards();  // the two streams use the channel in no order
        self.meet();
      } else {
        self.meet();
        FC_CUDA(cudaGraphLaunch(graphs[0], first), "a test");
        wait(first);
        // The other of the two may have told its sizes.
        const WaitFailure why = rank.failure();
        EXPECT(why == WaitFailure::kPeerFailed || why == WaitFailure::kMismatch, rank.text());
      }
      for (const Operation& each : all) {
        if (self.rank != 0 && &each != &all[0]) continue;
        float result = 0;
        std::memcpy(&result, download(each.results[0], sizeof(result), first).data(),
                    sizeof(result));
        EXPECT(std::isnan(result), "a result is ", result);
      }
      rank.leave();
    });
  }
}

/// What this process holds.
struct Held {
  int64_t heap = 0;      // bytes of the first thread's heap
  int64_t resident = 0;  // bytes; what the driver holds on the host too
  int64_t device = 0;    // bytes that all processes hold; under the shim, allocations so far
  int64_t files = 0;
};
Held held() {
  Held now;
  now.heap = static_cast<int64_t>(mallinfo2().uordblks);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> now.resident >> pages;
  now.resident = pages * sysconf(_SC_PAGESIZE);
#if defined(FC_SHIM)
  now.device = static_cast<int64_t>(shim::Runtime::get().allocations.load());
#else
  size_t free = 0, total = 0;
  FC_CUDA(cudaMemGetInfo(&free, &total), "a test");
  now.device = static_cast<int64_t>(total - free);
#endif
  const std::filesystem::directory_iterator files("/proc/self/fd"), end;
  now.files = std::distance(begin(files), end);
  return now;
}

/// All kinds of operations, again and again: after the first tenth nothing of what a process holds
/// grows. Under the shim its own records and the devices' memory are on the host, so nothing is
/// claimed about it. FC_TEST_LEAK, host or device: a control.
CASE(growth) {
  const uint64_t operations = rounds_wanted(kOnSimulatedDevices ? 600 : 10'000);
  const char* const leak = std::getenv("FC_TEST_LEAK");
  const std::string leaks = leak == nullptr ? "" : leak;
  run_ipc_ranks(ranks_wanted(), [&](const IpcRank& self) {
    Rank rank(self);
    std::mt19937_64 random(seed);   // the same on all ranks
    std::vector<Operation> all[2];  // for each channel, since nothing else orders them
    for (const OpKind kind : kKinds) {
      for (const int channel : {0, 1}) {
        const uint64_t count = random() % 2 == 0 ? 7 : 300;
        all[channel].push_back(
            make_operation(kind, DType::kFloat32, count, ReduceOp::kMax, self.size(), random));
        enqueue(rank, all[channel].back(), channel, false);
      }
    }
    std::vector<void*> lost;
    lost.reserve(operations);
    Held before;
    for (uint64_t i = 0; i < operations; ++i) {
      const int channel = static_cast<int>(random() % 2);
      const Operation& next = all[channel][random() % std::size(kKinds)];
      rank.collectives.enqueue(next.call, channel, rank.streams[channel]);
      if (i % 100 == 99) rank.wait_for_all();  // no more than a stream's queue takes
      if (leaks == "host") lost.push_back(std::malloc(16));
      if (leaks == "device") static_cast<void>(device_memory(1 << 10));
      if (i + 1 == operations / 10) {
        self.meet();
        before = held();
        self.meet();
      }
    }
    self.meet();
    const Held after = held();
    self.meet();
    const auto grown =
        static_cast<int64_t>(4 * operations);  // less than one allocation per operation
    EXPECT(kOnSimulatedDevices || after.heap - before.heap < grown, "heap: ", before.heap,
           " bytes, then ", after.heap);
    EXPECT(after.files <= before.files, "files: ", before.files, ", then ", after.files);
    const int64_t most = kOnSimulatedDevices ? 0 : 2 << 20;  // an allocation is a multiple of 2 MiB
    EXPECT(after.device - before.device <= most, "device: ", before.device, ", then ",
           after.device);
    EXPECT(kOnSimulatedDevices || after.resident - before.resident < 4 << 20,
           "resident: ", before.resident, " bytes, then ", after.resident);
    EXPECT(rank.text(0).empty() && rank.text(1).empty(), rank.text(0), rank.text(1));
    if (self.rank == 0) {
      std::printf("growth of %llu operations: heap %lld, resident %lld, device %lld\n",
                  static_cast<unsigned long long>(operations),
                  static_cast<long long>(after.heap - before.heap),
                  static_cast<long long>(after.resident - before.resident),
                  static_cast<long long>(after.device - before.device));
    }
    rank.leave();
  });
}

/// The survivors' device still works, and so does a new group of theirs.
void expect_a_new_group(const IpcRank& self, int dead) {
  const IpcRank left = self.without(dead);
  Rank rank(left);
  std::mt19937_64 random(3);
  Operation sum =
      make_operation(OpKind::kAllReduce, DType::kFloat32, 500, false, left.size(), random);
  enqueue(rank, sum, 0, false);
  check(rank, sum, 0);
  EXPECT(rank.text().empty(), rank.text());
  rank.leave();
}

/// Ends the process after `life`, whatever its threads and its device are doing.
void die_in(std::chrono::microseconds life) {
  std::thread([life] {
    std::this_thread::sleep_for(life);
    std::raise(SIGKILL);
  }).detach();
}

/// Rank 2 dies while its kernel waits for the others, which come afterwards.
CASE(death_in_a_wait) {
  run_ipc_ranks(3, [seed](const IpcRank& self) {
    {
      Rank rank(self, small(700));
      std::mt19937_64 random(seed);
      Operation sum = make_operation(OpKind::kAllReduce, DType::kFloat32, 2000, false, 3, random);
      self.meet();
      if (self.rank == 2) {
        enqueue(rank, sum, 0, false);
        die_in(std::chrono::milliseconds(50));
        rank.wait_for_all();
        EXPECT(false, "rank 2 lives, and nobody came: ", rank.text());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      enqueue(rank, sum, 0, false);
      rank.wait_for_all();
      // What it had told before it died is as good as any other's: its opening, but no closing.
      EXPECT(rank.text().find("rank 2 has not come") != std::string::npos ||
                 rank.failure() == WaitFailure::kPeerFailed,
             rank.text());
    }
    expect_a_new_group(self, 2);
  });
}

/// Rank 2 dies while kernels of all ranks move much data, one after the other.
CASE(death_in_a_copy) {
  run_ipc_ranks(3, [seed](const IpcRank& self) {
    {
      const uint64_t bytes = kOnSimulatedDevices ? 64 << 10 : 16 << 20;
      const int operations = kOnSimulatedDevices ? 30 : 2000;
      auto options = small(700);
      options.slot_bytes = 0;
      options.area_bytes = 3 * bytes / 4;
      Rank rank(self, options);
      std::mt19937_64 random(seed);
      Call call;
      call.kind = OpKind::kAllReduce;
      call.dtype = DType::kFloat32;
      call.op = ReduceOp::kSum;
      call.count = bytes / sizeof(float);
      char* const memory = upload(Bytes(bytes, 0), rank.streams[0]);
      call.input = call.output = memory;
      call.inputs = {memory};
      call.outputs = {memory};
      rank.collectives.enqueue(call, 0, rank.streams[0]);
      rank.wait_for_all();
      self.meet();
      if (self.rank == 2) die_in(std::chrono::microseconds(200 + random() % 20'000));
      for (int i = 0; i < operations; ++i) {
        rank.collectives.enqueue(call, 0, rank.streams[0]);
        if (self.rank == 2 && i == operations - 2) pause();  // whatever it has done until then
        if (i % 100 == 99) rank.wait_for_all();
      }
      rank.wait_for_all();
      const WaitFailure why = rank.failure();
      EXPECT(why == WaitFailure::kTimeout || why == WaitFailure::kPeerFailed, rank.text());
      float first = 0;
      std::memcpy(&first, download(memory, sizeof(first), rank.streams[0]).data(), sizeof(first));
      EXPECT(std::isnan(first), "the last result is NaN");
    }
    expect_a_new_group(self, 2);
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
