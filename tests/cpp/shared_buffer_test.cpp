// Memory that peers have mapped: found by them, given back, and kept back after a failure.
//
//   shared_buffer_test CASE SEED
#include "transport/shm/shared_buffer.h"

#include "shm_world.h"
#include "transport/fork.h"

namespace fastcomm::testing {
namespace {

constexpr size_t kBytes = 100000;

std::unique_ptr<Transport> formed(Bootstrap& store, int rank, int size, Endpoint& endpoint) {
  auto result = form(store, rank, size, &endpoint);
  EXPECT(result.group != nullptr, result.reason);
  return std::move(result.group);
}

void tell(Bootstrap& store, const std::string& what, int rank) {
  store.set(concat(what, rank), "1");
}

void await(Bootstrap& store, const std::string& what, int size) {
  for (int rank = 0; rank < size; ++rank) {
    store.get(concat(what, rank), soon());
  }
}

/// A rank's buffer is named, found and written by its peers; memory elsewhere has no name.
CASE(reach) {
  constexpr int kSize = 3;
  ForkedStore store;
  run_processes(kSize, [&](int rank) {
    Endpoint endpoint("auto");
    auto group = formed(store, rank, kSize, endpoint);
    std::vector<std::unique_ptr<SharedBuffer>> before;  // other offsets on every rank
    std::mt19937_64 bits(seed + rank);
    for (int i = 0; i < 1 + rank; ++i) {
      before.push_back(std::make_unique<SharedBuffer>(endpoint, 1 + bits() % 50000));
    }
    SharedBuffer buffer(endpoint, kBytes);
    auto* data = static_cast<char*>(buffer.data());
    EXPECT(data[0] == 0 && data[kBytes - 1] == 0);
    const uint64_t where = group->locate(data + 10, kBytes - 10);
    EXPECT(where != kNotShared && group->reach(rank, where, kBytes - 10) == data + 10);
    int on_stack = 0;
    const auto heap = std::make_unique<int>();
    EXPECT(group->locate(&on_stack, sizeof(on_stack)) == kNotShared);
    EXPECT(group->locate(heap.get(), sizeof(*heap)) == kNotShared);
    EXPECT(group->locate(data, size_t{1} << 40) == kNotShared, "reaches past the segment");

    const uint64_t end = endpoint.segment().mapping().bytes();
    for (int peer = 0; peer < kSize; ++peer) {
      EXPECT(group->reach(peer, end - 8, 8) != nullptr);
      EXPECT(group->reach(peer, end - 8, 9) == nullptr);
      EXPECT(group->reach(peer, end + 1, 0) == nullptr);
      EXPECT(group->reach(peer, kNotShared, 1) == nullptr);
    }

    store.set(concat("where", rank), std::to_string(where));
    for (int peer = 0; peer < kSize; ++peer) {
      const uint64_t theirs = std::stoull(store.get(concat("where", peer), soon()));
      group->reach(peer, theirs, kBytes - 10)[rank] = static_cast<char>('a' + rank);
    }
    tell(store, "written", rank);
    await(store, "written", kSize);
    EXPECT(std::string(data, 14) == std::string(10, '\0') + "abc" + '\0');
    tell(store, "read", rank);
    await(store, "read", kSize);
  });
}

/// Freed memory serves the next buffer, zeroed; memory in quarantine only when the peers have left.
CASE(quarantine) {
  constexpr int kSize = 3;
  ForkedStore store;
  run_processes(kSize, [&](int rank) {
    Endpoint endpoint("auto");
    auto group = formed(store, rank, kSize, endpoint);
    const auto offset = [&](const SharedBuffer& buffer) {
      return endpoint.segment().mapping().offset_of(buffer.data(), 1);
    };
    auto first = std::make_unique<SharedBuffer>(endpoint, kBytes);
    const uint64_t where = offset(*first);
    std::memset(first->data(), 1, kBytes);
    first.reset();
    auto second = std::make_unique<SharedBuffer>(endpoint, kBytes);
    EXPECT(offset(*second) == where);
    EXPECT(*static_cast<char*>(second->data()) == 0);
    // A part of it is enough to hold all of it back; its neighbour stays free.
    auto neighbour = std::make_unique<SharedBuffer>(endpoint, kBytes);
    const uint64_t next = offset(*neighbour);
    group->quarantine(where + 5000, 100);
    second.reset();
    neighbour.reset();
    auto third = std::make_unique<SharedBuffer>(endpoint, kBytes);
    EXPECT(offset(*third) == next, "memory in quarantine was used again");
    third.reset();
    tell(store, "tried", rank);
    await(store, "tried", kSize);
    if (rank == 0) {  // its own leave notice changes nothing: it is the peers that write
      group.reset();
      EXPECT(offset(SharedBuffer(endpoint, kBytes)) == next);
      store.set("first left", "1");
    }
    store.get("first left", soon());
    group.reset();
    tell(store, "left", rank);
    await(store, "left", kSize);
    const size_t all = endpoint.segment().mapping().bytes() - 4096;
    const std::string text = error_of([&] { SharedBuffer(endpoint, all); });
    EXPECT(text.empty(), "memory was not given back: ", text);
  });
}

/// A child of fork() shares the memory with its parent and frees nothing of it.
CASE(fork) {
  watch_for_forks();
  Endpoint endpoint("auto");
  auto buffer = std::make_unique<SharedBuffer>(endpoint, kBytes);
  auto* data = static_cast<char*>(buffer->data());
  data[0] = 1;
  // The endpoint's thread is past its start, and holds no lock of the allocator.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const pid_t pid = fork();
  if (pid == 0) {
    const bool seen = data[0] == 1;
    data[1] = 2;
    buffer.reset();
    _exit(seen ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT(data[0] == 1 && data[1] == 2, "the child gave the memory back");
}

/// Running out is an error that names the variable, and takes nothing.
CASE(full) {
  Endpoint endpoint("auto");
  const size_t all = endpoint.segment().mapping().bytes();
  ErrorCode code{};
  std::string text = error_of([&] { SharedBuffer(endpoint, ~size_t{0}); }, &code);
  EXPECT(text.find("FASTCOMM_SEGMENT_MB") != std::string::npos, text);
  text = error_of([&] { SharedBuffer(endpoint, all); }, &code);
  EXPECT(code == ErrorCode::kSystem, text);
  EXPECT(text.find("FASTCOMM_SEGMENT_MB") != std::string::npos, text);
  SharedBuffer small(endpoint, 0);
  EXPECT(reinterpret_cast<uint64_t>(small.data()) % 4096 == 0);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  setenv("FASTCOMM_SEGMENT_MB", "64", 1);
  return fastcomm::testing::run_cases(argc, argv);
}
