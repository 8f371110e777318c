// The CUDA all_reduce: every result to the bit against a reference of its own, the failure of a wait,
// and what the shim itself promises. On the host under the execution shim, or on one GPU that all
// ranks share when compiled by nvcc.
//
//   shim_all_reduce_test [CASE [SEED]]     CASE: sums | race | failures | shim
//
// sums runs every number of ranks, dtype and reduction over odd sizes and alignments; race is the
// short program that ThreadSanitizer watches. SEED also seeds yields at flags and barriers.
#include <cstdio>
#include <string>

#include "check.h"
#include "shim_world.h"

namespace fastcomm::testing {
namespace {

/// One all_reduce as each rank issues it.
struct Case {
  CudaLaunch launch;
  bool average;
  bool in_place;
  uint64_t count;
  uint64_t input_offset;  // elements off a 16-byte boundary
  uint64_t output_offset;
  std::vector<std::vector<char>> inputs;  // one a rank
  std::vector<DeviceMemory> input_memory;
  std::vector<DeviceMemory> output_memory;

  uint64_t bytes() const { return count * dtype_size(launch.dtype); }
  size_t input_at() const { return input_offset * dtype_size(launch.dtype); }
  size_t output_at() const {
    return in_place ? input_at() : output_offset * dtype_size(launch.dtype);
  }
  const DeviceMemory& result(int rank) const {
    return in_place ? input_memory[rank] : output_memory[rank];
  }
};

constexpr ScratchLayout kLayout{1024, 256, 128};
constexpr int kWarp = kOnDevice ? 32 : 1;  // threads of a block come in multiples of it
constexpr uint64_t kGuard = 64;            // bytes behind an output that must stay as they are

Case make_case(int ranks, const CudaLaunch& launch, bool average, uint64_t count,
               std::mt19937_64& random) {
  Case c{launch, average, random() % 3 == 0, count, 0, 0, {}, {}, {}};
  if (random() % 2 == 0) {
    c.input_offset = random() % 5;
    c.output_offset = random() % 5;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    c.inputs.push_back(random_values(launch.dtype, count, random));
    c.input_memory.emplace_back(c.bytes() + 64 + kGuard);
    c.output_memory.emplace_back(c.bytes() + 64 + kGuard);
    c.input_memory[rank].upload(c.inputs[rank], c.input_at());
  }
  return c;
}

std::string describe(int ranks, const Case& c) {
  return concat(ranks, " ranks, ", dtype_name(c.launch.dtype), c.average ? " avg" : " sum",
                c.launch.one_shot ? " one-shot" : " two-shot", ", ", c.launch.channels,
                " channels of ", c.launch.threads, " threads, ", c.count, " elements at +",
                c.input_offset, "/+", c.output_offset, c.in_place ? ", in place" : "");
}

void launch_case(World& world, const Case& c, int rank) {
  CudaAllReduceArgs args = world.args(rank);
  args.input = c.input_memory[rank].get() + c.input_at();
  args.output = c.result(rank).get() + c.output_at();
  args.count = c.count;
  args.block_bytes = kLayout.block_bytes;
  args.average = c.average;
  launch_all_reduce(args, c.launch, world.stream(rank));
}

/// Bits of every rank against the reference; nothing written around the output.
void check_case(const World& world, const Case& c) {
  const std::vector<char> wanted =
      reference::reduce(c.launch.dtype, c.inputs, c.average ? world.size() : 1);
  const std::vector<char> zeros(kGuard, 0);
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::vector<char> memory = c.result(rank).download();
    const char* got = memory.data() + c.output_at();
    EXPECT(c.bytes() == 0 || std::memcmp(got, wanted.data(), c.bytes()) == 0, "rank ", rank, " of ",
           describe(world.size(), c));
    EXPECT(std::memcmp(got + c.bytes(), zeros.data(), kGuard) == 0, "guard of rank ", rank, " of ",
           describe(world.size(), c));
  }
}

/// Back-to-back operations on one group, with no barrier in between; checked when all are done.
void run_and_check(World& world, const std::vector<Case>& cases) {
  world.run([&](int rank) {
    for (const Case& c : cases) launch_case(world, c, rank);
  });
  for (const Case& c : cases) check_case(world, c);
}

/// How many values a left fold rounds otherwise than the tree: inputs that do not show the order
/// of the sum would prove nothing.
int values_that_show_order(const Case& c) {
  int different = 0;
  const auto value = [&](size_t rank, uint64_t i) {
    float v;
    std::memcpy(&v, &c.inputs[rank][i * sizeof(float)], sizeof(v));
    return v;
  };
  for (uint64_t i = 0; i < c.count; ++i) {
    std::vector<float> leaves;
    float fold = value(0, i);
    for (size_t rank = 0; rank < c.inputs.size(); ++rank) leaves.push_back(value(rank, i));
    for (size_t rank = 1; rank < c.inputs.size(); ++rank) fold += leaves[rank];
    different += fold != reference::tree(leaves);
  }
  return different;
}

void test_sums(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
    // Each thread of a block is one of the host, of which there are not many.
    const int channels = kOnDevice || ranks <= 4 ? 3 : ranks <= 8 ? 2 : 1;
    const int most_threads = ranks <= 8 ? 4 : 2;
    // The first flags wrap within the run.
    World world(ranks, channels, kLayout, 0xfffffff0u);
    std::vector<Case> cases;
    const auto some = [&] { return 1 + static_cast<int>(random() % channels); };
    for (int d = 0; d < static_cast<int>(DType::kOther); ++d) {
      const auto dtype = static_cast<DType>(d);
      const uint64_t element = dtype_size(dtype);
      const uint64_t one_shot_limit = kLayout.payload_bytes / element;
      for (const bool average : {false, true}) {
        const int threads = kWarp * (1 + static_cast<int>(random() % most_threads));
        const CudaLaunch one{dtype, true, some(), channels, threads};
        const CudaLaunch two{dtype, false, some(), channels, threads};
        cases.push_back(make_case(ranks, one, average, random() % one_shot_limit, random));
        cases.push_back(make_case(ranks, two, average, random() % (8000 / element), random));
        if (dtype == DType::kFloat32 && ranks >= 4) {
          const Case all = make_case(ranks, one, average, 1024, random);
          EXPECT(values_that_show_order(all) > 100, ranks, " ranks");
        }
      }
    }
    const int threads = kWarp * most_threads;
    const CudaLaunch launch{DType::kFloat32, false, channels, channels, threads};
    for (const uint64_t count : {0, 1, 63, 64, 65}) {
      cases.push_back(make_case(ranks, launch, false, count, random));
      cases.push_back(
          make_case(ranks, {launch.dtype, true, 1, channels, threads}, false, count, random));
    }
    cases.push_back(make_case(ranks, launch, false, 7001, random));  // many blocks
    run_and_check(world, cases);
    std::printf("sums: %d ranks, %zu operations\n", ranks, cases.size());
  }
}

void test_race(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const int ranks : {2, 4}) {
    World world(ranks, 2, kLayout);
    std::vector<Case> cases;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        cases.push_back(make_case(ranks, {dtype, true, 2, 2, 3 * kWarp}, false, 200, random));
        cases.push_back(make_case(ranks, {dtype, false, 2, 2, 3 * kWarp}, true, 700, random));
      }
    }
    run_and_check(world, cases);
    std::printf("race: %d ranks, %zu operations\n", ranks, cases.size());
  }
}

/// Rank 2 of 4 stays away: the others' waits end, name it, and later operations return at once.
void test_late_rank() {
  World world(4, 1, kLayout, 100);
  world.timeout_ns = 50'000'000;
  std::mt19937_64 random(1);
  const Case c = make_case(4, {DType::kFloat32, true, 1, 1, 4}, false, 16, random);
  world.run([&](int rank) {
    if (rank == 2) return;
    launch_case(world, c, rank);
    launch_case(world, c, rank);
  });
  for (const int rank : {0, 1, 3}) {
    const WaitRecord& record = world.record(rank, 0);
    EXPECT(record.failure == static_cast<uint32_t>(WaitFailure::kTimeout), "rank ", rank);
    EXPECT(record.peer == 2 && record.missing == 4u, "rank ", rank, " missed ", record.missing);
    EXPECT(record.operation == 0 && record.step == 1, "operation ", record.operation);
    EXPECT(record.expected == 101 && record.seen == 100, "saw ", record.seen);
    EXPECT(world.state(rank, 0).failed != 0, "rank ", rank);
    EXPECT(world.state(rank, 0).operations == 1, "the second operation ran");
  }
}

void test_abort() {
  World world(2, 1, kLayout);
  world.abort();
  std::mt19937_64 random(1);
  const Case c = make_case(2, {DType::kFloat32, false, 1, 1, 2}, false, 16, random);
  launch_case(world, c, 0);
  synchronize(world.stream(0));
  EXPECT(world.record(0, 0).failure == static_cast<uint32_t>(WaitFailure::kAborted), "aborted");
}

ErrorCode refused(const CudaAllReduceArgs& args, const CudaLaunch& launch) {
  try {
    launch_all_reduce(args, launch, nullptr);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kSystem;
}

void test_refused_arguments() {
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  World world(2, 1, kLayout);
  CudaAllReduceArgs args = world.args(0);
  const CudaLaunch launch{DType::kFloat32, false, 1, 1, 2};
  args.count = 4096;
  args.block_bytes = kLayout.block_bytes;
  EXPECT(refused(args, {DType::kOther, false, 1, 1, 2}) == ErrorCode::kUnsupported, "dtype");
  EXPECT(refused(args, {DType::kFloat32, true, 1, 1, 2}) == kInvalid, "payload slot");
  EXPECT(refused(args, {DType::kFloat32, false, 0, 1, 2}) == kInvalid, "no channel");
  EXPECT(refused(args, {DType::kFloat32, false, 2, 1, 2}) == kInvalid, "channels not resident");
  EXPECT(refused(args, {DType::kFloat32, false, 1, 1, 1024}) == kInvalid, "threads");
  args.input += 2;
  EXPECT(refused(args, launch) == kInvalid, "misaligned input");
  args.input -= 2;
  args.block_bytes = 2 * kLayout.block_bytes;
  EXPECT(refused(args, launch) == kInvalid, "block larger than its slot");
  args.block_bytes = kLayout.block_bytes;
  args.peers.size = kMaxCudaRanks + 1;
  EXPECT(refused(args, launch) == ErrorCode::kUnsupported, "ranks");
  if (!kOnDevice) EXPECT(max_all_reduce_channels(2, 4, 3) == 1, "a third of the shim's device");
}

void test_failures(uint64_t) {
  test_late_rank();
  test_abort();
  test_refused_arguments();
}

#if defined(FC_SHIM)
__global__ void sum_of_block(int* out, int* votes) {
  FC_SHARED(int, slots, shim::kMaxBlockThreads);
  slots[threadIdx.x] = static_cast<int>(blockIdx.x * 10 + threadIdx.x);
  __syncthreads();
  int sum = 0;
  for (unsigned t = 0; t < blockDim.x; ++t) sum += slots[t];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  votes[blockIdx.x * blockDim.x + threadIdx.x] = __syncthreads_and(threadIdx.x + blockIdx.x != 2);
}

void test_shim(uint64_t) {
  std::vector<int> out(12), votes(12);
  EXPECT(FC_LAUNCH(sum_of_block, dim3(3), dim3(4), nullptr, out.data(), votes.data()) == 0, "ran");
  for (int i = 0; i < 12; ++i) {
    EXPECT(out[i] == 6 + i / 4 * 40, "thread ", i);
    EXPECT(votes[i] == 0, "each block has one thread that votes no");
  }
}
#endif

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) {
  using namespace fastcomm::testing;
#if !defined(FC_SHIM)
  // Kernels of ranks wait for each other: their streams must not share a queue of the device.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
#endif
  return run_cases(argc, argv,
                   {
#if defined(FC_SHIM)
                       {"shim", test_shim},
#endif
                       {"sums", test_sums},
                       {"race", test_race},
                       {"failures", test_failures}});
}
