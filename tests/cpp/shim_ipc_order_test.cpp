// The order between processes that share memory of devices, under the execution shim: what flags,
// streams, events, the host and handles order, and that what they leave without order is reported,
// whatever the timing.
//
//   shim_ipc_order_test [CASE [SEED]]
//   CASE: shadow | clocks | words | host | all_reduce | one | death
//
// one is a single operation of two ranks, for negative controls: all of its hazards are counted.
#include <set>
#include <string>
#include <tuple>

#include "core/touches.h"
#include "engines/cuda/all_reduce.h"
#include "ipc_world.h"
#include "random_values.h"
#include "reference_tree.h"

namespace fastcomm::testing {
namespace {

using shim::block_worker;
using shim::SharedShadow;
using shim::SharedUse;
using shim::stream_worker;
using shim::thread_worker;
using shim::WideClock;
using shim::work_number;
using shim::Worker;

/// Random uses by a few workers that now and then learn from each other, against a model by the byte.
void test_shadow(uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr uint32_t kWorkers = 4;
  constexpr uint64_t kBytes = 64;
  using Found = std::set<std::tuple<uint64_t, bool>>;  // byte, wrote
  struct Byte {
    SharedUse write{};
    std::vector<SharedUse> reads;
  };
  for (int round = 0; round < 200; ++round) {
    const auto shadow = std::make_unique<SharedShadow>();
    std::vector<Byte> model(kBytes);
    std::vector<WideClock> clocks(kWorkers);
    for (uint64_t i = 1; i <= 60; ++i) {
      const auto who = static_cast<uint32_t>(random() % kWorkers);
      if (random() % 3 == 0) clocks[who].join(clocks[random() % kWorkers]);
      const uint64_t begin = random() % kBytes;
      const uint64_t end = begin + random() % (kBytes - begin);
      const bool write = random() % 2 == 0;
      const SharedUse use{stream_worker(who + 1, 0), work_number(i, shim::kWholeLaunch), 0};
      clocks[who].learn(use.worker, use.number);
      Found found, wanted;
      const auto note = [&](const SharedUse&, bool wrote, uint64_t at, uint64_t bytes) {
        for (uint64_t byte = at; byte < at + bytes; ++byte) found.insert({byte, wrote});
      };
      EXPECT(shadow->touch(begin, end, write, use, clocks[who], note), "there is room");
      EXPECT(shadow->touch(begin, end, write, use, clocks[who], note), "the same again");
      for (uint64_t at = begin; at < end; ++at) {
        const auto look = [&](const SharedUse& earlier, bool wrote) {
          if (earlier.worker == 0 || clocks[who].seen(earlier.worker, earlier.number)) return;
          wanted.insert({at, wrote});
        };
        look(model[at].write, true);
        if (!write) {
          model[at].reads.push_back(use);
          continue;
        }
        for (const SharedUse& read : model[at].reads) look(read, false);
        model[at] = {use, {}};
      }
      EXPECT(found == wanted, "round ", round, ", use ", i, ": ", found.size(), " of ",
             wanted.size());
    }
  }
  const auto full = std::make_unique<SharedShadow>();
  const auto nobody = [](const SharedUse&, bool, uint64_t, uint64_t) {};
  bool room = true;
  uint64_t ranges = 0;
  for (; room && ranges < 2 * SharedShadow::kMostRanges; ++ranges) {
    room = full->touch(ranges * 8, ranges * 8 + 4, true, {1, 1, 0}, {}, nobody);
  }
  EXPECT(!room && ranges == SharedShadow::kMostRanges + 1, "full after ", ranges);
}

void test_clocks(uint64_t) {
  const Worker stream = stream_worker(7, 3), other = stream_worker(8, 3);
  const Worker block = block_worker(stream, 2), thread = thread_worker(block, 1);
  WideClock clock;
  EXPECT(!clock.seen(stream, work_number(1, 1)), "nothing yet");
  clock.learn(thread, work_number(2, 1));
  EXPECT(clock.seen(thread, work_number(2, 1)) && !clock.seen(block, work_number(2, 1)), "thread");
  clock.learn(block, work_number(2, 3));
  EXPECT(clock.seen(thread, work_number(2, 3)) && !clock.seen(block, work_number(2, 4)), "block");
  EXPECT(!clock.seen(block_worker(stream, 1), work_number(2, 1)), "another block");
  clock.learn(stream, work_number(2, shim::kWholeLaunch));
  EXPECT(clock.seen(block_worker(stream, 1), work_number(2, 9)), "of a launch that is over");
  EXPECT(!clock.seen(block, work_number(3, 1)), "the next launch");
  EXPECT(!clock.seen(other, work_number(1, 1)), "another process");
  const auto flat = std::make_unique<shim::FlatClock>();
  EXPECT(clock.store(*flat) && flat->count == 1, "what is covered is forgotten: ", flat->count);
  WideClock copy;
  copy.join(*flat);
  EXPECT(copy.seen(thread, work_number(2, 5)), "through memory");
  for (uint32_t i = 0; i < shim::FlatClock::kMost; ++i) clock.learn(stream_worker(i + 9, 1), 1);
  EXPECT(!clock.store(*flat) && flat->count == 0, "too many workers");
}

// ---- through the runtime ----

char* device_memory(size_t bytes) {
  void* memory = nullptr;
  FC_CUDA(cudaMalloc(&memory, bytes), "a test");
  return static_cast<char*>(memory);
}
cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a test");
  return stream;
}
void set(char* memory, size_t bytes, cudaStream_t stream) {
  FC_CUDA(cudaMemsetAsync(memory, 0, bytes, stream), "a test");
}
void wait(cudaStream_t stream) { FC_CUDA(cudaStreamSynchronize(stream), "a test"); }
void order(cudaStream_t first, cudaStream_t second) {
  cudaEvent_t event = nullptr;
  FC_CUDA(cudaEventCreateWithFlags(&event, 0), "a test");
  FC_CUDA(cudaEventRecord(event, first), "a test");
  FC_CUDA(cudaStreamWaitEvent(second, event, 0), "a test");
  FC_CUDA(cudaEventDestroy(event), "a test");
}

/// Memory of every rank as this one reaches it, set to zero before the handles went out.
std::vector<char*> windows_of(const IpcRank& self, size_t bytes, cudaStream_t stream) {
  char* const own = device_memory(bytes);
  set(own, bytes, stream);
  wait(stream);
  cudaIpcMemHandle_t handle;
  FC_CUDA(cudaIpcGetMemHandle(&handle, own), "a test");
  std::vector<char*> all;
  for (const cudaIpcMemHandle_t& each : self.exchange(handle)) {
    void* memory = own;
    if (static_cast<int>(all.size()) != self.rank) {
      FC_CUDA(cudaIpcOpenMemHandle(&memory, each, cudaIpcMemLazyEnablePeerAccess), "a test");
    }
    all.push_back(static_cast<char*>(memory));
  }
  return all;
}

constexpr size_t kData = 256;  // behind the flag

__global__ void say(char* window, uint32_t value) {
  FC_TOUCHES(window + kData, 64, true);
  window[kData + threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) store_flag(reinterpret_cast<uint32_t*>(window), value);
}
__global__ void hear(const char* window, uint32_t value) {
  while (!reached(load_flag(reinterpret_cast<const uint32_t*>(window)), value)) FC_YIELD();
}

/// Each kind of order, with it and without. Ranks meet by their sockets, which order nothing here.
void test_words(uint64_t) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    const cudaStream_t stream = make_stream(), second = make_stream();
    const auto windows = windows_of(self, 1024, stream);
    char* const window = windows[0];
    const bool first = self.rank == 0;
    const auto meet = [&] {
      wait(stream);
      wait(second);
      self.meet();
    };
    expect_hazards({}, "handles order what was before them");
    // 1: a flag, and work behind the wait for it, in its stream and by an event in another.
    if (first) {
      FC_LAUNCH(say, dim3(1), dim3(2), stream, window, 1u);
    } else {
      FC_LAUNCH(hear, dim3(1), dim3(1), stream, window, 1u);
      set(window + kData, 8, stream);
      order(stream, second);
      set(window + kData + 8, 8, second);
    }
    meet();
    expect_hazards({}, "a flag");
    // 2: the same bytes again, with nothing but the sockets in between.
    if (first) FC_LAUNCH(say, dim3(1), dim3(2), stream, window, 2u);
    meet();
    std::vector<std::vector<std::string>> twice = {
        {"say (device 0, stream", ", block 0 writes 8 bytes at 256 of memory of process",
         "which cudaMemsetAsync", " writes, and nothing orders"},
        {"writes 8 bytes at 264"}};
    expect_hazards(first ? twice : decltype(twice){}, "written back without an order");
    // 3: heard in one stream, used in another.
    if (!first) {
      FC_LAUNCH(hear, dim3(1), dim3(1), stream, window, 2u);
      std::vector<char> copy(64);
      FC_CUDA(cudaMemcpyAsync(copy.data(), window + kData, 64, cudaMemcpyDefault, second),
              "a test");
      wait(second);
    }
    meet();
    std::vector<std::vector<std::string>> once = {{"cudaMemcpyAsync (device 0, stream ",
                                                   "reads 64 bytes at 256 of memory of process",
                                                   "which", "say", "block 0 writes"}};
    expect_hazards(first ? decltype(once){} : once, "no event");
    // 4: the host has waited for who has heard.
    if (!first) {
      set(window + kData, 64, second);
      wait(second);
    }
    meet();
    expect_hazards({}, "the host");
    // 5: flags set to zero while somebody looks at them.
    if (first) set(window, 4, second);
    meet();
    std::vector<std::vector<std::string>> zero = {
        {"cudaMemsetAsync", "writes 4 bytes at 0", "hear", "reads"}};
    expect_hazards(first ? zero : decltype(zero){}, "a flag that is set");
  });
}

/// What the host does wrong with memory that others have.
void test_host(uint64_t) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    const cudaStream_t stream = make_stream();
    char* const early = device_memory(100);
    set(early, 100, stream);
    cudaIpcMemHandle_t handle;
    FC_CUDA(cudaIpcGetMemHandle(&handle, early), "a test");
    expect_hazards({{"the host exports 100 bytes", "has not waited"}}, "exported too early");
    wait(stream);
    const auto windows = windows_of(self, 1024, stream);
    char* const peer = windows[1 - self.rank];
    set(windows[self.rank] + 512, 1, stream);
    set(peer, 1, stream);
    FC_CUDA(cudaIpcCloseMemHandle(peer), "while it is used");
    bool reported = false;  // what the stream has done by now is reported once more
    for (const std::string& hazard : shim::Order::get().take_hazards()) {
      reported = reported || hazard.find("the host frees 1 bytes") != std::string::npos;
    }
    EXPECT(reported, "unmapped");
    self.meet();
    wait(stream);
    self.meet();
  });
  run_ipc_ranks(2, [](const IpcRank& self) {
    const cudaStream_t stream = make_stream();
    const auto windows = windows_of(self, 1024, stream);
    self.meet();
    if (self.rank == 0) {
      FC_CUDA(cudaFree(windows[0]), "a test");
      expect_hazards({{"another process has still mapped"}}, "freed");
    }
    self.meet();
    if (self.rank == 1) {
      set(windows[0], 16, stream);
      set(windows[0], 16, stream);
      wait(stream);
      expect_hazards(
          {{"cudaMemsetAsync", "writes 16 bytes at 0 of memory that process", "has freed"}},
          "used behind its end");
    }
  });
}

// ---- all_reduce ----

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
void test_all_reduce(uint64_t seed) {
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
  const shim::LedgerMapping mapping(again, slot);
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
  return run_cases(argc, argv,
                   {{"shadow", test_shadow},
                    {"clocks", test_clocks},
                    {"words", test_words},
                    {"host", test_host},
                    {"all_reduce", test_all_reduce},
                    {"one", test_one},
                    {"death", test_death}});
}
