// Collectives of processes with a device each (engines/cuda/peer_collectives.h): bits, order, and
// every way to fail. Under the execution shim, or on a GPU, which the processes may share.
//
//   shim_peer_collectives_test [CASE [SEED]]
//
// CASE: bits | pulls | back_to_back | two | one_queue | one | mismatch | pairs | unlike_pairs |
// late | abort | death | refused | unmapped | ways. one is a single operation of two ranks, for
// negative controls.
#include <filesystem>
#include <iterator>
#include <thread>

#include "peer_world.h"

namespace fastcomm::testing {
namespace {

/// Operations back to back, on the streams of two channels. Results of slices are pushed, or
/// pulled.
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

CASE(bits) { test_bits_of(seed, true); }
CASE(pulls) { test_bits_of(seed, false); }

Operation sum_of(int size, uint64_t count, uint64_t seed = 5, DType dtype = DType::kFloat32) {
  std::mt19937_64 random(seed);
  return make_operation(OpKind::kAllReduce, dtype, count, ReduceOp::kSum, size, random);
}

/// Two streams whose operations come in opposite order.
CASE(two) {
  run_ipc_ranks(2, [&](const IpcRank& self) {
    Rank rank(self);
    std::vector<Operation> all;
    for (int i = 0; i < 8; ++i) all.push_back(sum_of(2, 300, 8 * seed + i));
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
CASE(one_queue) {
  const auto body = [](const IpcRank& self) {
    Rank rank(self, small(300));
    std::vector<Operation> all = {sum_of(2, 30), sum_of(2, 30)};
    for (const int channel : {self.rank, 1 - self.rank}) {
      enqueue(rank, all[channel], channel, false);
    }
    rank.wait_for_all();
    // If one bound runs out much earlier than the other, the second operation is in time.
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

/// A fast rank would rewrite its slot while the other reads it, unless there are two.
CASE(back_to_back) {
  run_ipc_ranks(2, [&](const IpcRank& self) {
    Rank rank(self);
    std::vector<Operation> all;
    for (int i = 0; i < 6; ++i) {
      all.push_back(sum_of(2, 100, 6 * seed + i));
      enqueue(rank, all.back(), 0, false);
    }
    rank.wait_for_all();
    for (const Operation& each : all) check(rank, each, 0);
    rank.leave();
  });
}

CASE(one) {
  run_ipc_ranks(2, [&](const IpcRank& self) {
    Rank rank(self);
    for (int i = 0; i < 2; ++i) {
      Operation one = sum_of(2, 100, 2 * seed + i);
      enqueue(rank, one, 0, false);
      check(rank, one, 0);  // whoever comes next in the stream reads what peers have written
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
  Operation later = sum_of(rank.self.size(), 7);
  enqueue(rank, later, 0, false);
  rank.wait_for_all();
  EXPECT(all_nan(download(later.results[0], 28, rank.streams[0])), "and those of what follows");
  Operation other = sum_of(rank.self.size(), 7, 5, DType::kInt32);
  enqueue(rank, other, 0, false);
  rank.wait_for_all();
  EXPECT(download(other.results[0], 28, rank.streams[0]) == Bytes(28, 0x55), "nothing came");
}

CASE(mismatch) {
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
    EXPECT(rank.text() ==
               "the ranks called different operations, and rank 1 is the odd one: rank 1 called "
               "all_reduce(sum, float32, 1001 elements), sequence 1; ranks 0, 2 called "
               "all_reduce(sum, float32, 1000 elements), sequence 1",
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

/// An all_to_all in which `sends` says how many elements go from each rank to each.
Operation messages_of(const std::vector<std::vector<int>>& sends) {
  std::mt19937_64 random(3);
  const auto size = sends.size();
  Operation made;
  made.call.kind = OpKind::kAllToAll;
  made.call.dtype = DType::kFloat32;
  made.inputs.resize(size);
  made.expected.resize(size);
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      made.inputs[from].push_back(random_values(DType::kFloat32, sends[from][to], random));
      made.expected[to].push_back(made.inputs[from][to]);
    }
  }
  return made;
}

/// Two of four ranks exchange much while the others meet; then all go on together.
CASE(pairs) {
  run_ipc_ranks(4, [](const IpcRank& self) {
    Rank rank(self, small(3000));
    std::vector<std::vector<int>> sends(4, std::vector<int>(4, 5));
    sends[1][3] = 700;
    std::vector<Operation> all = {messages_of(sends), sum_of(4, 500), messages_of(sends)};
    for (Operation& each : all) enqueue(rank, each, 0, false);
    rank.wait_for_all();
    EXPECT(rank.text().empty(), "rank ", self.rank, ": ", rank.text());
    for (const Operation& each : all) check(rank, each, 0);
    rank.leave();
  });
}

/// What one rank sends is not what the other expects: both know, and the third hears of it.
CASE(unlike_pairs) {
  run_ipc_ranks(3, [](const IpcRank& self) {
    Rank rank(self, small(5000));
    Operation odd = messages_of(std::vector<std::vector<int>>(3, std::vector<int>(3, 4)));
    if (self.rank == 2) odd.expected[2][0].resize(8);
    enqueue(rank, odd, 0, false);
    rank.wait_for_all();
    const bool concerned = self.rank != 1;
    const std::string words =
        "all_to_all(float32), sequence 0: rank 0 sends 16 bytes to rank 2, which expects 8";
    EXPECT(!concerned || rank.text() == words, "rank ", self.rank, ": ", rank.text());
    EXPECT(rank.failure() == (concerned ? WaitFailure::kMismatch : WaitFailure::kPeerFailed),
           "rank ", self.rank, ": ", rank.text());
    for (int peer = 0; peer < 3; ++peer) {
      const size_t bytes = odd.expected[self.rank][peer].size();
      EXPECT(all_nan(download(odd.results[peer], bytes, rank.streams[0])), "NaN from ", peer);
    }
    rank.leave();
  });
}

/// A rank does not come; those that have waited tell the one that comes too late.
CASE(late) {
  run_ipc_ranks(3, [](const IpcRank& self) {
    Rank rank(self, small(300));
    Operation missed = sum_of(3, 500);
    if (self.rank != 2) {
      // The first one's bound runs out; the other's may, or it learns from the first.
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

CASE(abort) {
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

/// A rank is killed with operations under way, in whatever phase they are then, or before the last
/// one.
CASE(death) {
  run_ipc_ranks(3, [seed](const IpcRank& self) {
    Rank rank(self, small(500));
    constexpr int kOperations = 12;
    std::mt19937_64 random(seed);
    const std::chrono::microseconds life(random() % 40'000);
    self.meet();
    if (self.rank == 2) {
      std::thread([life] {
        std::this_thread::sleep_for(life);
        std::raise(SIGKILL);
      }).detach();
    }
    Operation last;
    for (int i = 0; i < kOperations; ++i) {
      if (self.rank == 2 && i == kOperations - 1) pause();
      last = make_operation(i % 3 == 1 ? OpKind::kAllGather : OpKind::kAllReduce, DType::kFloat32,
                            2000, ReduceOp::kSum, 3, random);
      enqueue(rank, last, 0, false);
    }
    rank.wait_for_all();
    EXPECT(all_nan(download(last.results[0], 8000, rank.streams[0])), "the last one's results");
    const WaitFailure why = rank.failure();
    EXPECT(why == WaitFailure::kTimeout || why == WaitFailure::kPeerFailed, rank.text());
  });
}

/// A refused call has enqueued nothing, on one rank or on all: the next operation is as good as
/// any.
CASE(refused) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    Rank rank(self);
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
    Operation good = sum_of(2, 500);
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

#if defined(FC_SHIM)
int open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd"), end;
  return static_cast<int>(std::distance(begin(files), end));
}

/// What one rank's driver refuses, after how many calls: for its own window, or its peer's.
struct Refusal {
  DeviceWay way;
  const char* function;
  int passes;
};
constexpr Refusal kRefusals[] = {
    {DeviceWay::kHandle, "cudaIpcGetMemHandle", 0},
    {DeviceWay::kHandle, "cudaIpcOpenMemHandle", 0},
    {DeviceWay::kDescriptor, "cuMemGetAllocationGranularity", 0},
    {DeviceWay::kDescriptor, "cuMemCreate", 0},
    {DeviceWay::kDescriptor, "cuMemExportToShareableHandle", 0},
    {DeviceWay::kDescriptor, "cuMemImportFromShareableHandle", 0},
    {DeviceWay::kFabric, "cuMemExportToShareableHandle", 0},
    {DeviceWay::kFabric, "cuMemImportFromShareableHandle", 0},
    {DeviceWay::kFabric, "cuMemAddressReserve", 0},
    {DeviceWay::kFabric, "cuMemAddressReserve", 1},
    {DeviceWay::kFabric, "cuMemMap", 0},
    {DeviceWay::kDescriptor, "cuMemMap", 1},
    {DeviceWay::kFabric, "cuMemSetAccess", 0},
    {DeviceWay::kDescriptor, "cuMemSetAccess", 1},
};

/// Where one rank cannot map another's window, all say so, and nothing is left mapped or open.
CASE(unmapped) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    auto& ipc = shim::Ipc::get();
    auto& vmm = shim::Vmm::get();
    const int files = open_files();
    for (const Refusal& refusal : kRefusals) {
      const std::string function = refusal.function;
      for (int culprit = 0; culprit < 2; ++culprit) {
        const bool mine = self.rank == culprit;
        ipc.supported = !mine || function != "cudaIpcGetMemHandle";
        ipc.opens = !mine || function != "cudaIpcOpenMemHandle";
        vmm.refusing = mine ? refusal.function : "";
        vmm.passes = refusal.passes;
        std::string text;
        try {
          Rank rank(self, small(), refusal.way);
        } catch (const Error& error) {
          text = error.what();
        }
        const bool runtime = refusal.way == DeviceWay::kHandle;
        const std::string words =
            concat("rank ", culprit, ": ", function,
                   runtime ? ": operation not supported" : ": CUDA_ERROR_NOT_SUPPORTED");
        EXPECT(text.find(words) == 0, "rank ", self.rank, ": ", function, ": ", text);
        if (runtime) continue;
        EXPECT(vmm.is_empty(), function, " after ", refusal.passes, ": memory is left");
        EXPECT(open_files() <= files, function, " after ", refusal.passes, ": files are left");
      }
    }
    ipc.supported = ipc.opens = true;
    vmm.refusing = "";
    for (const char* const name : {"handle", "descriptor", "fabric"}) {
      Rank rank(self, small(), device_ways(name).at(0));
      Operation good = sum_of(2, 100);
      enqueue(rank, good, 0, false);
      check(rank, good, 0);
      rank.leave();
    }
    EXPECT(vmm.is_empty(), "memory is left");
  });
}

/// The first way that all ranks have is taken, and what was wrong with the earlier ones is known.
CASE(ways) {
  run_ipc_ranks(2, [](const IpcRank& self) {
    Messages out_of_band(self);
    const int device = self.rank % device_count();
    const auto way_found = [&](std::string& why_not) {
      DeviceWindowsFound found =
          make_device_windows(out_of_band, self.rank, device, 4096, device_ways("auto"));
      found.windows->leave(out_of_band);
      why_not = found.why_not;
      return found.way;
    };
    std::string why_not;
    EXPECT(way_found(why_not) == DeviceWay::kHandle && why_not.empty(), why_not);
    shim::Ipc::get().opens = self.rank == 1;
    EXPECT(way_found(why_not) == DeviceWay::kDescriptor, "descriptors");
    EXPECT(why_not.find("handle: rank 0: cudaIpcOpenMemHandle") == 0, why_not);
    shim::Vmm::get().descriptors = self.rank == 0;
    EXPECT(way_found(why_not) == DeviceWay::kFabric, "fabric");
    EXPECT(why_not.find("; descriptor: rank 1: cuMemCreate") != std::string::npos, why_not);
    shim::Vmm::get().fabric = false;
    try {
      way_found(why_not);
      EXPECT(false, "there is no way");
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT(text.find("; fabric: rank 0: cuMemCreate") != std::string::npos, text);
    }
  });
}
#endif

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
