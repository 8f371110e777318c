// How ranks of a group over shared memory end: killed, finished, forked; and how peers judge it.
//
//   shm_ends_test CASE SEED
#include <csignal>

#include "engines/cpu/communicator.h"
#include "engines/cpu/progress_thread.h"
#include "shm_world.h"
#include "transport/fork.h"

namespace fastcomm::testing {
namespace {

GroupTraits traits_of(const ShmTransportResult& result, int size) {
  GroupTraits traits;
  traits.size = size;
  traits.native = true;
  traits.layout = scratch_layout(
      {result.config.payload_bytes, result.config.block_bytes, result.config.rotation_bytes}, size);
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

/// The SIGKILL of a rank whose forked child holds copies of all its descriptors is seen at once.
void test_death(uint64_t) {
  ForkedStore store;
  auto* killed_at = static_cast<std::atomic<int64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto now = [] { return Clock::now().time_since_epoch().count(); };
  run_processes(
      3,
      [&](int rank) {
        Endpoint endpoint("memfd");
        ProgressThread progress_thread(endpoint.doorbell());
        auto result = form(store, rank, 3, &endpoint);
        const GroupTraits traits = traits_of(result, 3);
        auto group =
            std::make_shared<Communicator>(std::move(result.group), traits, progress_thread);
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
        // Rank 0 waits synchronously, rank 2 leaves it to the progress thread.
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

/// A rank that leaves and ends properly is not taken for dead: what it took part in can be
/// finished, from memory that its process left behind.
void test_exit(uint64_t) {
  ForkedStore store;
  run_processes(4, [&](int rank) {
    Endpoint endpoint("memfd");
    ProgressThread progress_thread(endpoint.doorbell());
    auto result = form(store, rank, 4, &endpoint);
    const GroupTraits traits = traits_of(result, 4);
    auto group = std::make_shared<Communicator>(std::move(result.group), traits, progress_thread);
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

/// A child of fork() may release what it inherited, but can use none of it.
void test_fork(uint64_t) {
  ForkedStore store;
  run_processes(2, [&](int rank) {
    watch_for_forks();
    Endpoint endpoint("memfd");
    ProgressThread progress_thread(endpoint.doorbell());
    auto result = form(store, rank, 2, &endpoint);
    const GroupTraits traits = traits_of(result, 2);
    auto group = std::make_shared<Communicator>(std::move(result.group), traits, progress_thread);
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
  setenv("FASTCOMM_SEGMENT_MB", "64", 1);
  return run_cases(argc, argv, {{"death", test_death}, {"exit", test_exit}, {"fork", test_fork}});
}
