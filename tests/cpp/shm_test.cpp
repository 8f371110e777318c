// Groups of processes over shared memory: the segment, forming groups, deaths, leftovers.
// Hostile peers are in handshake_test.cpp.
//
//   shm_test CASE SEED
#include <sys/prctl.h>
#include <sys/stat.h>

#include <csignal>

#include "coll/communicator.h"
#include "coll/progress.h"
#include "coll/select.h"
#include "fork_world.h"
#include "transport/fork.h"
#include "transport/shm/forming.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kSegment = size_t{64} << 20;
constexpr GroupConfig kConfig{4096, 65536};

size_t scratch_of(const GroupConfig& config, int size) {
  return scratch_layout(config.payload_bytes, config.block_bytes, size).total();
}

Deadline soon() { return Clock::now() + std::chrono::seconds(30); }

ShmGroupResult form(Bootstrap& store, int rank, int size, Endpoint* endpoint,
                    const std::string& why_not = "") {
  return make_shm_group(store, rank, size, endpoint, why_not, kConfig, scratch_of, soon());
}

/// A barrier by flags alone: publishes `value` and waits until every peer has.
void meet(PeerGroup& group, uint32_t value) {
  store_flag(group.view().flag(group.rank(), 0), value);
  for (int peer = 0; peer < group.size(); ++peer) {
    const auto start = Clock::now();
    while (!reached(load_flag(group.view().flag(peer, 0)), value)) {
      if (seconds_since(start) > 30) throw Error(ErrorCode::kTimeout, "a peer did not meet");
      std::this_thread::yield();
    }
  }
}

/// Every rank writes its scratch, and reads everybody's.
void exchange(PeerGroup& group, uint32_t round) {
  const size_t bytes = scratch_of(kConfig, group.size());
  group.reserve_scratch(bytes);
  const auto content = [&](int rank) { return static_cast<char>(1 + 16 * rank + round % 16); };
  std::memset(group.view().scratch[group.rank()], content(group.rank()), bytes);
  meet(group, 2 * round + 1);
  for (int peer = 0; peer < group.size(); ++peer) {
    const char* scratch = group.view().scratch[peer];
    for (size_t at : {size_t{0}, size_t{1}, bytes / 2, bytes - 1}) {
      EXPECT(scratch[at] == content(peer), "rank ", peer, " at ", at);
    }
  }
  meet(group, 2 * round + 2);
}

/// Pages that back a file, in bytes.
uint64_t backed(int fd) {
  struct stat status{};
  fstat(fd, &status);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

void test_segment(uint64_t seed) {
  for (const char* kind : {"memfd", "posix"}) {
    Segment segment(kind, kSegment);
    EXPECT(std::string(segment.kind()) == kind);
    EXPECT(backed(segment.fd()) <= 8192, "sparse");
    // Random allocations never overlap, are page-aligned, and coalesce when freed.
    std::mt19937_64 bits(seed);
    std::map<uint64_t, uint64_t> held;
    for (int i = 0; i < 3000; ++i) {
      if (held.size() < 40 && bits() % 3 != 0) {
        const size_t bytes = 1 + bits() % 500000;
        uint64_t at = 0;
        if (!error_of([&] { at = segment.allocate(bytes); }).empty()) continue;
        EXPECT(at % 4096 == 0 && at >= 4096 && at + bytes <= kSegment);
        const auto next = held.lower_bound(at);
        EXPECT(next == held.end() || next->first >= at + bytes);
        EXPECT(next == held.begin() || std::prev(next)->first + std::prev(next)->second <= at);
        held[at] = bytes;
      } else if (!held.empty()) {
        auto it = std::next(held.begin(), bits() % held.size());
        segment.free(it->first, it->second);
        held.erase(it);
      }
    }
    for (const auto& [at, bytes] : held) segment.free(at, bytes);
    const uint64_t whole = segment.allocate(kSegment - 4096);  // in one piece again
    EXPECT(whole == 4096);
    ErrorCode code{};
    const std::string text = error_of([&] { segment.allocate(1); }, &code);
    EXPECT(code == ErrorCode::kSystem, text);
    EXPECT(text.find("FASTCOMM_SEGMENT_MB") != std::string::npos, text);
    segment.free(whole, kSegment - 4096);
    // Reserving backs memory, freeing gives it back and zeroes it.
    const uint64_t part = segment.allocate(1 << 20);
    segment.reserve(part, 1 << 20);
    EXPECT(backed(segment.fd()) >= 1 << 20);
    *segment.mapping().at(part) = 7;
    segment.free(part, 1 << 20);
    EXPECT(backed(segment.fd()) <= 8192, backed(segment.fd()));
    EXPECT(*segment.mapping().at(segment.allocate(1)) == 0);
    // Running out is an error, and no bus fault. There is no limit to try it on but an absurd one.
    EXPECT(!error_of([&] { segment.reserve(0, size_t{1} << 50); }).empty());
  }
  EXPECT(count_entries("/dev/shm", "fastcomm") == 0);
}

void test_groups(uint64_t) {
  for (const char* kind : {"memfd", "posix"}) {
    for (int size = 2; size <= 5; ++size) {
      ForkedStore store;
      run_processes(size, [&](int rank) {
        Endpoint endpoint(kind);
        auto result = form(store, rank, size, &endpoint);
        EXPECT(result.group != nullptr, result.reason);
        EXPECT(result.config.payload_bytes == kConfig.payload_bytes);
        for (uint32_t round = 0; round < 5; ++round) exchange(*result.group, round);
      });
    }
  }
  EXPECT(count_entries("/dev/shm", "fastcomm") == 0);
}

/// Groups of the same processes share connections: one more group costs no descriptor.
void test_reuse(uint64_t) {
  ForkedStore store;
  run_processes(3, [&](int rank) {
    Endpoint endpoint("memfd");
    std::vector<std::unique_ptr<PeerGroup>> groups;
    int descriptors = 0;
    for (int i = 0; i < 8; ++i) {
      auto result = form(store, rank, 3, &endpoint);
      EXPECT(result.group != nullptr, result.reason);
      groups.push_back(std::move(result.group));
      exchange(*groups.back(), 0);
      if (i == 0) descriptors = count_entries("/proc/self/fd");
      EXPECT(count_entries("/proc/self/fd") == descriptors, "group ", i);
    }
    exchange(*groups.front(), 1);  // the first is as good as the last
  });
}

/// Groups that come and go leave nothing behind.
void test_churn(uint64_t) {
  ForkedStore store;
  run_processes(3, [&](int rank) {
    Endpoint endpoint("memfd");
    long memory = 0, threads = 0;
    int descriptors = 0;
    uint64_t held = 0;
    for (int i = 0; i < 200; ++i) {
      auto result = form(store, rank, 3, &endpoint);
      EXPECT(result.group != nullptr, result.reason);
      exchange(*result.group, i % 4);
      meet(*result.group, 100);
      if (i % 20 == 19 && rank == 0) store.clear();
      meet(*result.group, 101);
      if (i == 30) {
        memory = status_kb("VmRSS");
        threads = status_kb("Threads");
        descriptors = count_entries("/proc/self/fd");
        held = backed(endpoint.segment().fd());
      }
    }
#if defined(__SANITIZE_ADDRESS__)
    memory += 500000;  // its allocator holds freed memory back for a while
#endif
    EXPECT(status_kb("VmRSS") < memory + 3000, memory, " kB became ", status_kb("VmRSS"));
    EXPECT(status_kb("Threads") == threads, threads);
    // A pidfd or two of former peers may wait to be closed, by a thread that needs a core for it.
    const auto start = Clock::now();
    while (count_entries("/proc/self/fd") > descriptors + 4 && seconds_since(start) < 10) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT(count_entries("/proc/self/fd") <= descriptors + 4, descriptors, " became ",
           count_entries("/proc/self/fd"));
    EXPECT(backed(endpoint.segment().fd()) <= held + (1 << 20), held);
  });
}

/// Where one rank cannot, nobody does, and all say the same.
void test_no_endpoint(uint64_t) {
  ForkedStore store;
  run_processes(3, [&](int rank) {
    std::unique_ptr<Endpoint> endpoint;
    if (rank != 1) endpoint = std::make_unique<Endpoint>("memfd");
    auto result = form(store, rank, 3, endpoint.get(), rank == 1 ? "told not to" : "");
    EXPECT(result.group == nullptr);
    EXPECT(result.reason == "rank 1 has no shared memory: told not to", result.reason);
    // The endpoints are as good as before.
    auto again = form(store, rank, 3, endpoint.get(), rank == 1 ? "still" : "");
    EXPECT(again.group == nullptr && again.reason.find("still") != std::string::npos);
    if (rank == 1) endpoint = std::make_unique<Endpoint>("posix");
    auto good = form(store, rank, 3, endpoint.get());
    EXPECT(good.group != nullptr, good.reason);
    exchange(*good.group, 0);
  });
}

/// What an earlier attempt left in the store is not taken for this one's.
void test_stale(uint64_t) {
  ForkedStore store;
  store.set("hello/1", "0123456789abcdef");
  store.set("hello/2", hex(random_bits()));
  run_processes(3, [&](int rank) {  // an attempt that fails half-way
    if (rank == 2) return;
    ErrorCode code{};
    Endpoint endpoint("memfd");
    const std::string text = error_of(
        [&] {
          make_shm_group(store, rank, 3, &endpoint, "", kConfig, scratch_of,
                         Clock::now() + Milliseconds(300));
        },
        &code);
    EXPECT(code == ErrorCode::kTimeout, text);
    EXPECT(rank != 0 || text.find("ranks 2 did not arrive") != std::string::npos, text);
  });
  for (int attempt = 0; attempt < 2; ++attempt) {
    run_processes(3, [&](int rank) {
      Endpoint endpoint("memfd");
      auto result = form(store, rank, 3, &endpoint);
      EXPECT(result.group != nullptr, result.reason);
      exchange(*result.group, 0);
    });
  }
}

GroupTraits traits_of(const ShmGroupResult& result, int size) {
  GroupTraits traits;
  traits.size = size;
  traits.native = true;
  traits.layout = scratch_layout(result.config.payload_bytes, result.config.block_bytes, size);
  return traits;
}

Call sum_of(std::vector<float>& data) {
  Call call;
  call.kind = OpKind::kAllReduce;
  call.dtype = DType::kFloat32;
  call.op = ReduceOp::kSum;
  call.count = data.size();
  call.input = data.data();
  call.output = data.data();
  return call;
}

/// SIGKILL of a rank, whose forked child holds copies of all its descriptors, is seen at once.
void test_death(uint64_t) {
  ForkedStore store;
  auto* killed_at = static_cast<std::atomic<int64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto now = [] { return Clock::now().time_since_epoch().count(); };
  run_processes(
      3,
      [&](int rank) {
        Endpoint endpoint("memfd");
        ProgressEngine engine(endpoint.doorbell());
        auto result = form(store, rank, 3, &endpoint);
        const GroupTraits traits = traits_of(result, 3);
        auto group = std::make_shared<Communicator>(std::move(result.group), traits, engine);
        std::vector<float> data(100000, 1.f);
        EXPECT(group->run(sum_of(data), Milliseconds(30000), nullptr)->error() == nullptr);
        if (rank == 1) {
          if (fork() == 0) {  // a worker that outlives its parent, and holds what it inherited
            std::this_thread::sleep_for(std::chrono::seconds(2));
            _exit(0);
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          killed_at->store(now());
          kill(getpid(), SIGKILL);
        }
        // Rank 0 waits synchronously, rank 2 leaves it to the engine.
        auto operation = rank == 0 ? group->run(sum_of(data), Milliseconds(30000), nullptr)
                                   : group->start(sum_of(data), Milliseconds(30000), nullptr);
        while (!operation->done()) std::this_thread::sleep_for(std::chrono::microseconds(100));
        const double taken = static_cast<double>(now() - killed_at->load()) * 1e-9;
        ErrorCode code{};
        const std::string text =
            error_of([&] { std::rethrow_exception(operation->error()); }, &code);
        EXPECT(code == ErrorCode::kPeerLost, text);
        EXPECT(text.find("rank 1 (pid") != std::string::npos, text);
        EXPECT(taken < 0.5, taken);
        std::printf("rank %d knew after %.2f ms\n", rank, taken * 1e3);
      },
      {{1, SIGKILL}});
  EXPECT(count_entries("/dev/shm", "fastcomm") == 0);
}

/// Who leaves and ends properly is not taken for dead: what it took part in can be finished, out
/// of memory that its process left behind.
void test_exit(uint64_t) {
  ForkedStore store;
  run_processes(4, [&](int rank) {
    Endpoint endpoint("memfd");
    ProgressEngine engine(endpoint.doorbell());
    auto result = form(store, rank, 4, &endpoint);
    const GroupTraits traits = traits_of(result, 4);
    auto group = std::make_shared<Communicator>(std::move(result.group), traits, engine);
    std::vector<float> data(500000, 1.f);
    for (int round = 0; round < 3; ++round) {
      if (rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      auto operation = group->run(sum_of(data), Milliseconds(30000), nullptr);
      EXPECT(operation->error() == nullptr);
    }
    EXPECT(data.front() == 64.f && data.back() == 64.f);
    group->leave();
  });
}

/// A child of fork() may let go of what it inherited, and can use none of it.
void test_fork(uint64_t) {
  ForkedStore store;
  run_processes(2, [&](int rank) {
    watch_for_forks();
    Endpoint endpoint("memfd");
    ProgressEngine engine(endpoint.doorbell());
    auto result = form(store, rank, 2, &endpoint);
    const GroupTraits traits = traits_of(result, 2);
    auto group = std::make_shared<Communicator>(std::move(result.group), traits, engine);
    std::vector<float> data(1000, 1.f);
    group->run(sum_of(data), Milliseconds(30000), nullptr);
    const pid_t child = fork();
    if (child == 0) {
      ErrorCode code{};
      error_of([&] { group->run(sum_of(data), Milliseconds(1000), nullptr); }, &code);
      group->leave();
      group->abort("from a child");
      group.reset();
      _exit(code == ErrorCode::kForked ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
    auto operation = group->run(sum_of(data), Milliseconds(30000), nullptr);
    EXPECT(operation->error() == nullptr && data[999] == 4.f);
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  setenv("FASTCOMM_SEGMENT_MB", "64", 1);  // what kSegment says
  return run_cases(argc, argv,
                   {{"segment", test_segment},
                    {"groups", test_groups},
                    {"reuse", test_reuse},
                    {"churn", test_churn},
                    {"no_endpoint", test_no_endpoint},
                    {"stale", test_stale},
                    {"death", test_death},
                    {"exit", test_exit},
                    {"fork", test_fork}});
}
