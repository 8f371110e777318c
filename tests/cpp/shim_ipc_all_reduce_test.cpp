// The CUDA all_reduce of ranks in processes of their own, on each other's windows, under the execution
// shim: the bits, the order of every use of a window, and a rank that is killed.
//
//   shim_ipc_all_reduce_test [CASE [SEED]]    CASE: bits | one | death
//
// one is a single operation of two ranks, for negative controls: all of its hazards are counted.
#include "engines/cuda/all_reduce.h"
#include "ipc_world.h"
#include "random_values.h"
#include "reference_tree.h"

namespace fastcomm::testing {
namespace {

constexpr ScratchLayout kLayout{1024, 256, 128};

/// A rank of a group of processes that launch all_reduce.
class Rank {
 public:
  Rank(const IpcRank& self, int channels)
      : self_(self), channels_(channels), stream_(make_stream()) {
    FC_CUDA(cudaSetDevice(self.rank % 2), "a test");
    stream_ = make_stream();
    const size_t flags = channels * kLineBytes;
    windows_ = windows_of(self, flags + channels * kLayout.total(), stream_);
    states_ = device_memory(channels * sizeof(ChannelState));
    set(states_, channels * sizeof(ChannelState), stream_);
    wait(stream_);
    void* records = nullptr;
    FC_CUDA(cudaHostAlloc(&records, channels * sizeof(WaitRecord), 0), "a test");
    records_ = static_cast<WaitRecord*>(records);
    std::memset(records, 0, channels * sizeof(WaitRecord));
    view_.rank = self.rank;
    view_.size = self.size();
    for (int rank = 0; rank < self.size(); ++rank) {
      view_.flags[rank] = reinterpret_cast<uint32_t*>(windows_[rank]);
      view_.scratch[rank] = windows_[rank] + flags;
    }
  }

  /// Enqueues one; the result is in output.
  void all_reduce(DType dtype, bool one_shot, const char* input, char* output, uint64_t count) {
    CudaAllReduceArgs args{};
    args.peers = view_;
    args.layout = kLayout;
    args.states = reinterpret_cast<ChannelState*>(states_);
    args.records = records_;
    args.bounds = WaitBounds{timeout_ns, nullptr};
    args.input = input;
    args.output = output;
    args.count = count;
    args.block_bytes = kLayout.block_bytes;
    launch_all_reduce(args, {dtype, one_shot, channels_, channels_, 3}, stream_);
  }
  void wait_for_all() const { wait(stream_); }
  const WaitRecord& record() const { return records_[0]; }
  /// Nobody uses the others' windows any more.
  void leave() {
    for (int rank = 0; rank < self_.size(); ++rank) {
      if (rank != self_.rank) FC_CUDA(cudaIpcCloseMemHandle(windows_[rank]), "a test");
    }
    self_.meet();
    FC_CUDA(cudaFree(windows_[self_.rank]), "a test");
  }

  uint64_t timeout_ns = 60'000'000'000;

 private:
  const IpcRank& self_;
  const int channels_;
  cudaStream_t stream_;
  std::vector<char*> windows_;
  char* states_ = nullptr;
  WaitRecord* records_ = nullptr;
  PeerView view_;
};

/// Operations back to back, with the bits of the tree and no hazard.
void test_bits(uint64_t seed) {
  for (const int ranks : {2, 3}) {
    run_ipc_ranks(ranks, [&](const IpcRank& self) {
      Rank rank(self, 2);
      std::mt19937_64 random(seed);  // the same on all ranks
      struct Operation {
        DType dtype;
        std::vector<std::vector<char>> inputs;
        char* output;
      };
      std::vector<Operation> operations;
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          for (const bool one_shot : {true, false}) {
            const uint64_t count = random() % (one_shot ? 400 : 1500);
            Operation operation{dtype, {}, nullptr};
            for (int each = 0; each < ranks; ++each) {
              operation.inputs.push_back(random_values(dtype, count, random));
            }
            const std::vector<char>& own = operation.inputs[self.rank];
            char* const input = device_memory(own.size() + 16);
            if (!own.empty()) std::memcpy(input, own.data(), own.size());
            operation.output = repeat == 1 ? input : device_memory(own.size() + 16);
            rank.all_reduce(dtype, one_shot, input, operation.output, count);
            operations.push_back(operation);
          }
        }
      }
      rank.wait_for_all();
      for (const Operation& operation : operations) {
        const std::vector<char> wanted = reference::reduce(operation.dtype, operation.inputs, 1);
        EXPECT(wanted.empty() || std::memcmp(operation.output, wanted.data(), wanted.size()) == 0,
               "rank ", self.rank, " of ", ranks, ", ", dtype_name(operation.dtype), ", ",
               operation.inputs[0].size(), " bytes");
      }
      rank.leave();
    });
  }
}

void test_one(uint64_t) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    Rank rank(self, 1);
    char* const input = device_memory(400);
    std::memset(input, 0, 400);
    rank.all_reduce(DType::kFloat32, true, input, input, 100);
    rank.wait_for_all();
    self.meet();
  });
}

/// A rank is killed, once before an operation, once with the lock of the memory that others use: they
/// find out by their bounds, and go on.
void test_death(uint64_t) {
  run_ipc_ranks(3, [](const IpcRank& self) {
    Rank rank(self, 1);
    rank.timeout_ns = 300'000'000;
    char* const input = device_memory(400);
    std::memset(input, 0, 400);
    rank.all_reduce(DType::kFloat32, true, input, input, 100);
    rank.wait_for_all();
    EXPECT(rank.record().failure == 0, "all are there");
    self.meet();
    if (self.rank == 2) std::raise(SIGKILL);
    rank.all_reduce(DType::kFloat32, true, input, input, 100);
    rank.wait_for_all();
    EXPECT(rank.record().peer == 2 && rank.record().missing == 4u, "rank 2 is missing");
  });
  shim::LedgerFile file;
  const uint32_t slot = file.take();
  const int again = shim::open_file_of(getpid(), file.file());
  const shim::LedgerMapping mapping(again, shim::LedgerFile::offset_of(slot));
  shim::Ledger& ledger = *mapping.ledger();
  shim::LedgerFile::clear(ledger);
  ledger.shadow.count = 5;
  const pid_t pid = fork();
  if (pid == 0) {
    const shim::LedgerLock lock(ledger);
    std::raise(SIGKILL);
  }
  waitpid(pid, nullptr, 0);
  const shim::LedgerLock lock(ledger);
  EXPECT(ledger.shadow.count == 0, "what may be half of two is forgotten");
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv, {{"bits", test_bits}, {"one", test_one}, {"death", test_death}});
}
