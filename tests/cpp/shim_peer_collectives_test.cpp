// Collectives of processes with a device each (engines/cuda/peer_collectives.h): bits, order, and every
// way to fail. Under the execution shim, or on a GPU, which the processes may share.
//
//   shim_peer_collectives_test [CASE [SEED]]
//
// CASE: bits | pulls | back_to_back | two | one_queue | one | mismatch | late | abort | death | refused | graph | unmapped. one is a single
// operation of two ranks, for negative controls.
#include <thread>

#include "peer_world.h"

namespace fastcomm::testing {
namespace {

/// Operations back to back, on the streams of two channels. Results of slices are pushed, or pulled.
void test_bits_of(uint64_t seed, bool pushes) {
  for (const int size : {2, 3, 4}) {
    const auto body = [&](const IpcRank& self) {
      auto options = small();
      options.pushes = pushes;
      Rank rank(self, options);
#if defined(FC_SHIM)
      const int asked = shim::occupancy_questions;
#endif
      std::mt19937_64 random(seed * 10 + size);  // the same on all ranks
      std::vector<Operation> all;
      for (const OpKind kind : kKinds) {
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          const uint64_t count = random() % 4 == 0 ? random() % 3 : random() % 500;
          const ReduceOp op = kOps[random() % std::size(kOps)];
          all.push_back(make_operation(kind, dtype, count, op, size, random));
        }
      }
      std::shuffle(all.begin(), all.end(), random);
      for (size_t i = 0; i < all.size(); ++i) enqueue(rank, all[i], i % 2, random() % 2 == 0);
      rank.wait_for_all();
#if defined(FC_SHIM)
      EXPECT(shim::occupancy_questions == asked, "no kernel is loaded by an operation");
#endif
      for (size_t i = 0; i < all.size(); ++i) check(rank, all[i], i % 2);
      EXPECT(rank.text(0).empty() && rank.text(1).empty(), rank.text(0), rank.text(1));
      rank.leave();
    };
    run_ipc_ranks(size, body, /*hidden=*/size == 2, /*queues=*/size == 3 ? 1 : 0);
  }
}

void test_bits(uint64_t seed) { test_bits_of(seed, true); }
void test_pulls(uint64_t seed) { test_bits_of(seed, false); }

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

/// The same where all streams share one queue: at least one cannot meet, and it ends.
void test_one_queue(uint64_t) {
  const auto body = [](const IpcRank& self) {
    Rank rank(self, small(300));
    std::vector<Operation> all = {sum_of(2, 30), sum_of(2, 30)};
    for (const int channel : {self.rank, 1 - self.rank}) {
      enqueue(rank, all[channel], channel, false);
    }
    rank.wait_for_all();
    // Where one bound runs out much earlier than the other one, the second operation is in time.
    int failed = 0;
    for (const int channel : {0, 1}) {
      rank.failure(channel) == WaitFailure::kNone ? check(rank, all[channel], channel)
                                                  : static_cast<void>(++failed);
    }
    EXPECT(failed >= 1, "both have met");
    self.meet();
    rank.leave();
  };
  run_ipc_ranks(2, body, /*hidden=*/false, /*queues=*/1);
}

/// A rank that is fast writes its slot again while the other one reads it, unless there are two.
void test_back_to_back(uint64_t seed) {
  run_ipc_ranks(2, [&](const IpcRank& self) {
    Rank rank(self);
    std::mt19937_64 random(seed);
    std::vector<Operation> all;
    for (int i = 0; i < 6; ++i) {
      all.push_back(make_operation(OpKind::kAllReduce, DType::kFloat32, 100, false, 2, random));
      enqueue(rank, all.back(), 0, false);
    }
    rank.wait_for_all();
    for (const Operation& each : all) check(rank, each, 0);
    rank.leave();
  });
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
    if (self.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
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
  EXPECT(download(other.results[0], 28, rank.streams[0]) == Bytes(28, 0x55), "nothing came");
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
    Operation last;
    for (int i = 0; i < 3; ++i) {
      last = sum_of(3, 2000);
      enqueue(rank, last, 0, false);
      if (self.rank == 2 && i == 1) std::raise(SIGKILL);
    }
    rank.wait_for_all();
    EXPECT(all_nan(download(last.results[0], 8000, rank.streams[0])), "the last one's results");
    const WaitFailure why = rank.failure();
    EXPECT(why == WaitFailure::kTimeout || why == WaitFailure::kPeerFailed, rank.text());
  });
}

/// What is refused has enqueued nothing, on one rank or on all: the next operation is as good as any.
void test_refused(uint64_t) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    Rank rank(self);
    std::mt19937_64 random(1);
    const auto refuses = [&](Call call) {
      ErrorCode code = ErrorCode::kSystem;
      const std::string text =
          error_of([&] { rank.collectives.enqueue(call, 0, rank.streams[0]); }, &code);
      return code == ErrorCode::kUnsupported || code == ErrorCode::kInvalidArgument ? text : "";
    };
    char* const memory = device_memory(100);
    Call call;
    call.kind = OpKind::kAllReduce;
    call.dtype = DType::kOther;
    call.op = ReduceOp::kSum;
    call.count = 10;
    call.input = call.output = memory;
    EXPECT(refuses(call).find("no CUDA kernel") != std::string::npos, refuses(call));
    call.dtype = DType::kFloat32;
    call.op = ReduceOp::kBor;
    EXPECT(refuses(call).find("bits of integers only") != std::string::npos, refuses(call));
    call.op = ReduceOp::kSum;
    call.output = memory + 2;
    if (self.rank == 0) EXPECT(refuses(call).find("not aligned") != std::string::npos, "aligned");
    call.kind = OpKind::kSend;
    EXPECT(refuses(call).find("send: not between") != std::string::npos, refuses(call));
    Operation good = make_operation(OpKind::kAllReduce, DType::kFloat32, 500, false, 2, random);
    enqueue(rank, good, 0, false);
    rank.wait_for_all();
    check(rank, good, 0);
    const auto again = [&] { PeerCollectives second(rank.windows, small()); };
    EXPECT(error_of(again).find("counted before") != std::string::npos, "windows serve once");
    auto large = small();
    large.channels = 100;
    const auto beyond = [&] { PeerCollectives second(rank.windows, large); };
    EXPECT(error_of(beyond).find("are needed") != std::string::npos, "and have a size");
    rank.leave();
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
      for (int again = 0; again < 3; ++again) FC_CUDA(cudaGraphLaunch(exec, stream), "a test");
      EXPECT(download(output, own.size(), stream) == captured.expected[self.rank][0], "replay ", i);
      Operation eager = make_operation(kKinds[random() % std::size(kKinds)], DType::kFloat32, 200,
                                       true, 2, random);
      enqueue(rank, eager, 0, false);
      check(rank, eager, 0);
    }
    EXPECT(rank.text().empty(), rank.text());
    rank.leave();
  });
}

#if defined(FC_SHIM)
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
#endif

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv,
                   {{"bits", test_bits},
                    {"pulls", test_pulls},
                    {"back_to_back", test_back_to_back},
                    {"two", test_two},
                    {"one_queue", test_one_queue},
                    {"one", test_one},
                    {"mismatch", test_mismatch},
                    {"late", test_late},
                    {"abort", test_abort},
                    {"death", test_death},
                    {"refused", test_refused},
#if defined(FC_SHIM)
                    {"unmapped", test_unmapped},
#endif
                    {"graph", test_graph}});
}
