// What the collectives of one process over several devices promise about calls: which allocate,
// which threads may make them, which are refused. On the host under the execution shim, or on a GPU
// when compiled by nvcc, with ranks as its streams.
//
//   shim_local_calls_test [CASE [SEED]]
//
//   warm       nothing is allocated once an operation has run
//   threads    several threads that share a group
//   refused    wrong arguments
#include <functional>
#include <thread>

#include "core/device_guard.h"
#include "local_world.h"

namespace fastcomm::testing {
namespace {

void warm(uint64_t seed) {
#if defined(FC_SHIM)
  configure(3, [](int a, int b) { return a + b == 1 ? Link::kDirect : Link::kNone; });
  PeerAccess access(probe_peers, true);
  LocalWorld world(each_device(3), access, little_staging(), seed);
  std::vector<std::unique_ptr<Buffer>> buffers;
  RankTensors tensors(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (const size_t bytes : {400'000, 308}) {
      buffers.push_back(std::make_unique<Buffer>(rank, bytes, 0, world.random));
      tensors[rank].push_back(buffers.back()->data());
    }
  }
  const ReduceSpec spec{DType::kFloat32, DType::kFloat32, 0, 0};
  const auto once = [&] {
    world.collectives.reduce(tensors, tensors[1], {100'000, 77}, spec, 1, world.streams);
    world.collectives.broadcast(tensors, {400'000, 308}, 1, world.streams);
  };
  once();
  const uint64_t before = shim::Runtime::get().allocations;
  for (int repeat = 0; repeat < 3; ++repeat) once();
  EXPECT(shim::Runtime::get().allocations == before, "memory or events");
  world.finish();
#endif
  (void)seed;
}

/// Threads that share a group, each with its own streams and tensors. Their operations take turns,
/// but wait for each other only where they use the same staging memory.
void threads(uint64_t seed) {
  constexpr int kRanks = 3, kThreads = 3, kOperations = 4;
#if defined(FC_SHIM)
  configure(kRanks, [](int a, int b) { return a + b == 1 ? Link::kDirect : Link::kNone; });
#endif
  const std::vector<int> devices = each_device(kRanks);
  PeerAccess access(probe_peers, true);
  DeviceSet group(devices, access, little_staging());
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kThreads; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937_64 random(seed * kThreads + caller);
      LocalCollectives collectives(group);
      DeviceGuard guard;
      Streams streams(kRanks);
      std::vector<std::unique_ptr<Buffer>> buffers;
      RankTensors tensors(kRanks);
      const uint64_t count = 5000 + random() % 9000;
      std::vector<float> sums(count);
      for (int rank = 0; rank < kRanks; ++rank) {
        guard.set(devices[rank]);
        FC_CUDA(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking), "a test");
        std::vector<char> values(count * sizeof(float));
        for (uint64_t i = 0; i < count; ++i) {
          const float value = static_cast<float>(random() % 1000);  // sums are exact
          std::memcpy(&values[i * sizeof(float)], &value, sizeof(value));
          sums[i] += value;
        }
        buffers.push_back(std::make_unique<Buffer>(devices[rank], values.size(), 0, random));
        buffers[rank]->fill(values);
        buffers[rank]->upload(streams[rank]);
        tensors[rank] = {buffers[rank]->data()};
      }
      const ReduceSpec spec{DType::kFloat32, DType::kFloat32, 0, 0};
      for (int i = 0; i < kOperations; ++i) {
        collectives.reduce(tensors, tensors[i % kRanks], {count}, spec, i % kRanks, streams);
        collectives.broadcast(tensors, {count * sizeof(float)}, i % kRanks, streams);
      }
      for (int i = 1; i < kOperations; ++i) {  // with equal values
        for (float& sum : sums) sum *= kRanks;
      }
      const char* begin = reinterpret_cast<const char*>(sums.data());
      for (int rank = 0; rank < kRanks; ++rank) {
        guard.set(devices[rank]);
        buffers[rank]->want({begin, begin + count * sizeof(float)});
        buffers[rank]->take_back(streams[rank]);
        FC_CUDA(cudaStreamSynchronize(streams[rank]), "a test");
        EXPECT(buffers[rank]->first_difference() == -1, "caller ", caller, ", rank ", rank);
        FC_CUDA(cudaStreamDestroy(streams[rank]), "a test");
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void refused(uint64_t) {
#if defined(FC_SHIM)
  configure(2, [](int, int) { return Link::kDirect; });
#endif
  PeerAccess access(probe_peers, true);
  DeviceSet group(std::vector<int>(2, 0), access);
  LocalCollectives collectives(group);
  char byte = 0;
  const Tensors pair = {&byte, &byte};
  const RankTensors lists = {{&byte}, {&byte}};
  const ReduceSpec spec{DType::kFloat32, DType::kFloat32, 0, 0};
  const Streams streams(2, nullptr);
  const auto refusal = [&](const std::string& words, ErrorCode code,
                           const std::function<void()>& call) {
    ErrorCode found = ErrorCode::kSystem;
    const std::string text = error_of(call, &found);
    EXPECT(text.find(words) != std::string::npos && found == code, words, ": ", text);
  };
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  refusal("no rank 2 in a group of 2", invalid,
          [&] { collectives.broadcast(lists, {4}, 2, streams); });
  refusal("tensors of 1 ranks", invalid, [&] { collectives.broadcast({{}}, {}, 0, streams); });
  refusal("1 tensors of rank 0, but 2", invalid,
          [&] { collectives.broadcast(lists, {4, 4}, 0, streams); });
  refusal("was given 1 streams", invalid,
          [&] { collectives.gather(pair, pair, {0, 0}, 0, {nullptr}); });
  refusal("sizes of 1 ranks", invalid, [&] { collectives.scatter(pair, pair, {0}, 0, streams); });
  refusal("2 outputs of rank 1, but 1", invalid,
          [&] { collectives.reduce(lists, pair, {1}, spec, 1, streams); });
  refusal("no CUDA kernel reduces bytes", ErrorCode::kUnsupported, [&] {
    collectives.reduce(lists, pair, {1}, {DType::kOther, DType::kOther, 0, 0}, 1, streams);
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
  return run_cases(argc, argv, {{"warm", warm}, {"threads", threads}, {"refused", refused}});
}
