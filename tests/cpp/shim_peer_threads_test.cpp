// Collectives between devices (engines/cuda/peer_collectives.h) whose ranks are threads of one
// process. Windows are memory of that process, and kernels run in the thread that launches them, so
// ThreadSanitizer sees every use of a window and every flag between two ranks.
//
//   shim_peer_threads_test [CASE [SEED]]
//
// CASE: rounds | at_once | mixed | broadcasts | types | types_in_rounds. The last two need all
// kernels.
#include <cstring>
#include <memory>
#include <thread>

#include "engines/cuda/short.h"
#include "peer_world.h"

namespace fastcomm::testing {
namespace {

/// Memory of a window, which all threads reach.
class ThreadMemory final : public WindowMemory {
 public:
  ThreadMemory() : WindowMemory(0) {}
  char* make(uint64_t bytes) override {
    own_ = device_memory(bytes);
    set(own_, bytes, nullptr);
    wait(nullptr);
    return own_;
  }
  std::string handle() override { return {reinterpret_cast<const char*>(&own_), sizeof(own_)}; }
  char* map(int, const std::string& handle) override {
    char* theirs = nullptr;
    std::memcpy(&theirs, handle.data(), sizeof(theirs));
    return theirs;
  }
  void unmap(int) override {}
  void free() override { FC_CUDA(cudaFree(own_), "a test"); }

 private:
  char* own_ = nullptr;
};

struct ThreadRank {
  ThreadRank(const IpcRank& self, const PeerCollectives::Options& options)
      : self(self),
        out_of_band(self),
        windows(out_of_band, self.rank, std::make_unique<ThreadMemory>(),
                PeerCollectives::window_bytes(options, self.size())),
        pool(0, self.rank, self.size()),
        in_pool(pool, self.rank),
        collectives(windows, options, &pool) {
    in_pool.make(out_of_band, [] { return std::make_unique<ThreadMemory>(); });
  }

  const IpcRank& self;
  Messages out_of_band;
  DeviceWindows windows;
  PeerPool pool;
  InPool in_pool;
  PeerCollectives collectives;
  std::vector<cudaStream_t> streams{make_stream()};
  cudaStream_t memory_stream = make_stream();
};

using Operations = std::vector<Operation>;

/// Runs operations one after the other, with each number of ranks. `make` returns the same ones on
/// all ranks.
template <class Make>
void run(std::initializer_list<int> sizes, uint64_t seed, uint64_t slot_bytes, const Make& make) {
  for (const int size : sizes) {
    auto options = small();
    options.channels = 1;
    options.slot_bytes = slot_bytes;
    const auto sockets = connected_sockets(size);
    std::vector<std::thread> ranks;
    for (int own = 0; own < size; ++own) {
      ranks.emplace_back([&, own] {
        const IpcRank self(own, sockets[own]);
        ThreadRank rank(self, options);
        std::mt19937_64 random(seed * 10 + size);  // the same on all ranks
        Operations all = make(size, random);
        for (Operation& each : all) enqueue(rank, each, 0, random() % 2 == 0);
        for (const Operation& each : all) check(rank, each, 0);
        EXPECT(describe_failure(rank.collectives.record(0), own, size).text.empty(), "a failure");
        rank.pool.leave(rank.out_of_band);
        rank.windows.leave(rank.out_of_band);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    close_sockets(sockets);
  }
}

/// Every kind of operation, with two types.
Operations kinds(int size, std::mt19937_64& random) {
  Operations all;
  for (const OpKind kind : kKinds) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      all.push_back(make_operation(kind, dtype, random() % 300, random() % 2 == 0, size, random));
    }
  }
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

/// Every type and reduction that has kernels; sums of `random_values` are exact or have no NaN
/// payload.
Operations types(int size, std::mt19937_64& random) {
  Operations all;
  for (int each = 0; each < kNumDTypes; ++each) {
    const auto dtype = static_cast<DType>(each);
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
      for (int op = 0; op < kNumReduceOps; ++op) {
        const auto reduction = static_cast<ReduceOp>(op);
        if (!reduces_short(dtype, reduction)) continue;
        all.push_back(make_operation(kind, dtype, random() % 90, reduction, size, random));
      }
    }
  }
  EXPECT(all.size() > 3 * 80, all.size(), " operations");
  return all;
}

/// Broadcasts in slices (PeerAreas::slices_from) and in one piece: every type, or two with many
/// ranks; last rounds of no element, of one, of less than one for each rank, and of any number.
Operations broadcasts(int size, std::mt19937_64& random) {
  Operations all;
  for (int each = 0; each < (size <= 8 ? kNumDTypes : 2); ++each) {
    const auto dtype = static_cast<DType>(each);
    const uint64_t a_round = small().area_bytes / dtype_size(dtype);
    const uint64_t few = size - 1, any = random() % a_round;
    for (const uint64_t count : {any, a_round, a_round + 1, a_round + few, a_round + any}) {
      const OpKind kind = OpKind::kBroadcast;
      all.push_back(make_operation(kind, dtype, count, ReduceOp::kNone, size, random));
    }
  }
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

CASE(rounds) { run({2, 3}, seed, 0, kinds); }
CASE(at_once) { run({2, 3}, seed, 8192, kinds); }
CASE(mixed) { run({2, 3}, seed, 1024, kinds); }
CASE(broadcasts) { run({2, 3, 5, 8, 16}, seed, 0, broadcasts); }
CASE(types) { run({2, 5, 8, 13, 16}, seed, 65536, types); }
CASE(types_in_rounds) { run({2, 3, 5, 8}, seed, 0, types); }

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
