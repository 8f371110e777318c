// Shared memory between processes: the segment, forming groups, leftovers. How groups end is in
// shm_ends_test.cpp, hostile peers are in handshake_test.cpp.
//
//   shm_test CASE SEED
#include <sys/stat.h>

#include "shm_world.h"
#include "transport/cores.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kSegment = size_t{64} << 20;

/// A barrier by flags alone: publishes `value` and waits until every peer has.
void meet(Transport& group, uint32_t value) {
  store_flag(group.view().flags[group.rank()], value);
  for (int peer = 0; peer < group.size(); ++peer) {
    const auto start = Clock::now();
    while (!reached(load_flag(group.view().flags[peer]), value)) {
      if (seconds_since(start) > 30) throw Error(ErrorCode::kTimeout, "a peer did not meet");
      std::this_thread::yield();
    }
  }
}

/// Every rank writes its scratch, and reads everybody's.
void exchange(Transport& group, uint32_t round) {
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

CASE(segment) {
  for (const char* kind : {"memfd", "posix"}) {
    Segment segment(kind, kSegment, kSegment);
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
    // Reserving backs memory; freeing gives it back and zeroes it.
    const uint64_t part = segment.allocate(1 << 20);
    segment.reserve(part, 1 << 20);
    EXPECT(backed(segment.fd()) >= 1 << 20);
    *segment.mapping().at(part) = 7;
    segment.free(part, 1 << 20);
    EXPECT(backed(segment.fd()) <= 8192, backed(segment.fd()));
    EXPECT(*segment.mapping().at(segment.allocate(1)) == 0);
    // Running out is an error, not a bus fault. Only an absurd size can show it.
    EXPECT(!error_of([&] { segment.reserve(0, size_t{1} << 50); }).empty());
  }
  EXPECT(count_entries("/dev/shm", "fastcomm") == 0);
}

/// The size falls once, to no less than what is in use, and then stays.
CASE(settled) {
  constexpr size_t kUsed = size_t{10} << 20;
  for (const char* kind : {"memfd", "posix"}) {
    for (const size_t most : {size_t{0}, kUsed / 2, kUsed + 4096 + 5, kSegment, SIZE_MAX}) {
      Segment segment(kind, kSegment, 2 * kSegment);
      const uint64_t used = segment.allocate(kUsed);
      const size_t wanted =
          std::min(kSegment, std::max(most, static_cast<size_t>(used) + kUsed)) / 4096 * 4096;
      EXPECT(segment.settle(most) == wanted && segment.settle(4096) == wanted, kind, ' ', most);
      const Mapping peer(segment.fd(), wanted, /*check_header=*/true);
      segment.reserve(used, kUsed);
      *segment.mapping().at(used + kUsed - 1) = 7;
      EXPECT(*peer.at(used + kUsed - 1) == 7, "both see it");
      if (std::string(kind) == "memfd") {
        EXPECT(ftruncate(segment.fd(), 4096) != 0 && errno == EPERM, "sealed");
      }
      const size_t rest = wanted - used - kUsed;
      if (rest != 0) EXPECT(segment.allocate(rest) == used + kUsed, "the rest");
      const std::string text = error_of([&] { segment.allocate(1); });
      EXPECT(text.find("ulimit -v") != std::string::npos, text);
    }
  }
}

CASE(groups) {
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

/// Ranks that are bound to a core each do not outnumber them; ranks bound to one core do.
CASE(bound) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  EXPECT(sched_getaffinity(0, sizeof(usable), &usable) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &usable)) cores.push_back(core);
  }
  if (cores.size() < 2 || quota_cores() < 2) {
    std::printf("SKIPPED: ranks can have no cores of their own on one core\n");
    return;
  }
  for (const bool apart : {true, false}) {
    ForkedStore store;
    run_processes(2, [&](int rank) {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(cores[apart ? rank : 0], &own);
      EXPECT(sched_setaffinity(0, sizeof(own), &own) == 0);
      Endpoint endpoint("memfd");
      const auto formed = form(store, rank, 2, &endpoint);
      EXPECT(formed.group->oversubscribed() != apart);
    });
  }
}

/// Groups of the same processes share connections: one more group costs no descriptor.
CASE(reuse) {
  ForkedStore store;
  run_processes(3, [&](int rank) {
    Endpoint endpoint("memfd");
    std::vector<std::unique_ptr<Transport>> groups;
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
CASE(churn) {
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
CASE(no_endpoint) {
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

/// What an earlier attempt left in the store is not taken as this one's.
CASE(stale) {
  ForkedStore store;
  store.set("hello/1", "0123456789abcdef");
  store.set("hello/2", hex(random_bits()));
  run_processes(3, [&](int rank) {  // an attempt that fails half-way
    if (rank == 2) return;
    ErrorCode code{};
    Endpoint endpoint("memfd");
    const Deadline brief = Clock::now() + Milliseconds(300);
    const std::string text = error_of([&] { form(store, rank, 3, &endpoint, "", brief); }, &code);
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

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  setenv("FASTCOMM_SEGMENT_MB", "64", 1);  // what kSegment says
  return fastcomm::testing::run_cases(argc, argv);
}
