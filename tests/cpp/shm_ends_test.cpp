// How ranks of a group over shared memory end: killed, finished, forked; and how peers judge it.
//
//   shm_ends_test CASE SEED
#include <csignal>

#include "rank_world.h"
#include "shm_world.h"
#include "transport/fork.h"

namespace fastcomm::testing {
namespace {

/// A rank of a group, and a tensor that it sums.
struct Member {
  Member(Bootstrap& store, int rank, int size, size_t count) : data(count, 1.f) {
    auto result = form(store, rank, size, &endpoint);
    GroupTraits traits;
    traits.size = size;
    traits.native = true;
    traits.layout = scratch_layout(
        {result.config.payload_bytes, result.config.block_bytes, result.config.rotation_bytes},
        size);
    group = std::make_shared<Communicator>(std::move(result.group), traits, progress);
  }
  Call sum() { return sum_call(data.data(), data.size()); }
  std::shared_ptr<Operation> run() { return group->run(sum(), kTimeout, nullptr); }

  Endpoint endpoint{"memfd"};
  ProgressThread progress{endpoint.doorbell()};
  std::vector<float> data;
  std::shared_ptr<Communicator> group;
};

/// The SIGKILL of a rank whose forked child holds copies of all its descriptors is seen at once.
CASE(death) {
  ForkedStore store;
  auto* killed_at = static_cast<std::atomic<int64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto now = [] { return Clock::now().time_since_epoch().count(); };
  run_processes(
      3,
      [&](int rank) {
        Member member(store, rank, 3, 100000);
        EXPECT(member.run()->error() == nullptr);
        if (rank == 1) {
          if (fork() == 0) {  // a worker that outlives its parent, and holds what it inherited
            std::this_thread::sleep_for(std::chrono::seconds(2));
            _exit(0);
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          killed_at->store(now());
          kill(getpid(), SIGKILL);
        }
        // Rank 0 waits synchronously, rank 2 leaves it to the progress thread.
        auto operation =
            rank == 0 ? member.run() : member.group->start(member.sum(), kTimeout, nullptr);
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

/// A rank that leaves and ends properly is not taken for dead: what it took part in can be
/// finished, from memory that its process left behind.
CASE(exit) {
  ForkedStore store;
  run_processes(4, [&](int rank) {
    Member member(store, rank, 4, 500000);
    for (int round = 0; round < 3; ++round) {
      if (rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT(member.run()->error() == nullptr);
    }
    EXPECT(member.data.front() == 64.f && member.data.back() == 64.f);
    member.group->leave();
  });
}

/// A child of fork() may release what it inherited, but can use none of it.
CASE(fork) {
  ForkedStore store;
  run_processes(2, [&](int rank) {
    watch_for_forks();
    Member member(store, rank, 2, 1000);
    member.run();
    const pid_t child = fork();
    if (child == 0) {
      ErrorCode code{};
      error_of([&] { member.run(); }, &code);
      member.group->leave();
      member.group->abort("from a child");
      member.group.reset();
      _exit(code == ErrorCode::kForked ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
    EXPECT(member.run()->error() == nullptr && member.data[999] == 4.f);
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  setenv("FASTCOMM_SEGMENT_MB", "64", 1);
  return fastcomm::testing::run_cases(argc, argv);
}
