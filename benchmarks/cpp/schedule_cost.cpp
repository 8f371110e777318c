// What the schedule template costs a CPU: all_reduce of float32 over two processes, once through
// AllReduceOneShot / AllReduceTwoShot, run_steps() and CpuExecutor, once as loops that do the same
// steps written out for two ranks. Same blocks, same slots, same flags, same reduction function.
//
//   schedule_cost SCHEDULE BYTES SAMPLES BATCH BLOCK_BYTES      SCHEDULE: one-shot | two-shot
//
// Prints two lines, "template" and "by-hand", each followed by SAMPLES times in nanoseconds on rank
// 0, of BATCH operations each. Both run alternately in one pair of processes, in an order that
// flips, and every sample starts behind a barrier of its own.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "coll/all_reduce.h"
#include "coll/schedule.h"
#include "core/clock.h"
#include "kernels/span_cpu.h"

namespace fastcomm {
namespace {

constexpr int kRanks = 2;
constexpr size_t kFlagBytes = 4096;
constexpr int kBarrierChannel = 1;

struct Options {
  bool one_shot;
  uint64_t bytes;
  int samples;
  int batch;
  uint64_t block_bytes;
};

/// Spins for 100 us, then yields: both variants wait in the same way. The spin is bounded by time,
/// since a look costs the variants unequally.
template <class Ready>
void wait_until(const Ready& ready) {
  constexpr auto kSpin = std::chrono::microseconds(100);
  constexpr int kLooksPerClockRead = 64;
  const auto look = [&](int times) {
    for (int i = 0; i < times; ++i) {
      if (ready()) return true;
      cpu_relax();
    }
    return false;
  };
  if (look(kLooksPerClockRead)) return;
  const Clock::time_point begin = Clock::now();
  while (Clock::now() - begin < kSpin) {
    if (look(kLooksPerClockRead)) return;
  }
  while (!ready()) sched_yield();
}

/// What one rank runs on; the windows are one mapping, at equal addresses in both processes.
struct Rank {
  PeerView peers;
  ScratchLayout layout;
  ReduceFunction reduce;
  uint64_t block;  // elements
  float* input;
  float* output;
  uint64_t count;
  uint32_t base = 0;
  uint64_t operations = 0;
  uint32_t barriers = 0;

  void barrier() {
    ++barriers;
    store_flag(peers.flag(peers.rank, kBarrierChannel), barriers);
    wait_until(
        [&] { return reached(load_flag(peers.flag(1 - peers.rank, kBarrierChannel)), barriers); });
  }
};

template <class Schedule>
void by_template(Rank& rank) {
  const Schedule schedule{AllReduceArgs{rank.peers, rank.layout,
                                        reinterpret_cast<const char*>(rank.input),
                                        reinterpret_cast<char*>(rank.output), rank.count,
                                        sizeof(float), rank.block, rank.operations}};
  CpuExecutor executor(rank.peers, nullptr, rank.reduce, 1);
  uint32_t step = 0;
  bool done = false;
  while (!done) {  // each step waits anew, with a spin of its own
    const uint32_t before = step;
    wait_until([&] {
      done = run_steps(schedule, executor, rank.base, step, [](uint32_t) { return true; });
      return done || step != before;
    });
  }
  rank.base += schedule.steps() - 1;
  ++rank.operations;
}

void one_shot_by_hand(Rank& rank) {
  const int me = rank.peers.rank;
  const uint64_t slot = (rank.operations & 1) * rank.layout.payload_bytes;
  std::memcpy(rank.peers.scratch[me] + slot, rank.input, rank.count * sizeof(float));
  publish_flag(rank.peers.flags[me], ++rank.base);
  wait_until([&] { return reached(load_flag(rank.peers.flags[1 - me]), rank.base); });
  const void* sources[kRanks];
  sources[me] = rank.input;
  sources[1 - me] = rank.peers.scratch[1 - me] + slot;
  rank.reduce(ReduceSpan{rank.output, nullptr, sources, kRanks, rank.count, 1});
  ++rank.operations;
}

/// [first, last) of the two slices of a block that begins at `at`.
struct Halves {
  uint64_t first[kRanks], last[kRanks];
  Halves(uint64_t at, uint64_t count) {
    constexpr uint64_t kLine = kLineBytes / sizeof(float);
    const uint64_t half = ((count + 1) / 2 + kLine - 1) / kLine * kLine;
    first[0] = at;
    last[0] = first[1] = at + (half < count ? half : count);
    last[1] = at + count;
  }
};

void two_shot_by_hand(Rank& rank) {
  const int me = rank.peers.rank;
  const int peer = 1 - me;
  char* mine = rank.peers.scratch[me];
  const char* theirs = rank.peers.scratch[peer];
  const uint64_t stage = 2 * rank.layout.payload_bytes;
  const uint64_t result = stage + 2 * rank.layout.block_bytes;
  const uint64_t blocks = (rank.count + rank.block - 1) / rank.block;
  const auto halves = [&](uint64_t b) {
    const uint64_t at = b * rank.block;
    return Halves(at, std::min(rank.block, rank.count - at));
  };
  for (uint64_t step = 0; step < blocks + 3; ++step) {
    if (step > 0) {
      wait_until([&] { return reached(load_flag(rank.peers.flags[peer]), rank.base); });
    }
    if (step >= 1 && step - 1 < blocks) {
      const uint64_t b = step - 1;
      const Halves h = halves(b);
      std::memcpy(mine + stage + (b & 1) * rank.layout.block_bytes +
                      (h.first[peer] - b * rank.block) * sizeof(float),
                  rank.input + h.first[peer], (h.last[peer] - h.first[peer]) * sizeof(float));
    }
    if (step >= 2 && step - 2 < blocks) {
      const uint64_t b = step - 2;
      const Halves h = halves(b);
      const void* sources[kRanks];
      sources[me] = rank.input + h.first[me];
      sources[peer] = theirs + stage + (b & 1) * rank.layout.block_bytes +
                      (h.first[me] - b * rank.block) * sizeof(float);
      if (h.first[me] < h.last[me]) {
        rank.reduce(ReduceSpan{rank.output + h.first[me],
                               mine + result + (b & 1) * rank.layout.result_bytes, sources, kRanks,
                               h.last[me] - h.first[me], 1});
      }
    }
    if (step >= 3) {
      const uint64_t b = step - 3;
      const Halves h = halves(b);
      std::memcpy(rank.output + h.first[peer], theirs + result + (b & 1) * rank.layout.result_bytes,
                  (h.last[peer] - h.first[peer]) * sizeof(float));
    }
    if (step + 1 < blocks + 3) publish_flag(rank.peers.flags[me], ++rank.base);
  }
  ++rank.operations;
}

using Variant = void (*)(Rank&);

double sample_ns(Rank& rank, Variant variant, int batch) {
  rank.barrier();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < batch; ++i) variant(rank);
  return seconds(Clock::now() - begin) * 1e9;
}

/// Both variants must leave the exact sum: 1 + 2 at every position.
bool correct(Rank& rank, Variant variant) {
  std::fill(rank.output, rank.output + rank.count, 0.0f);
  rank.barrier();
  variant(rank);
  return std::all_of(rank.output, rank.output + rank.count, [](float v) { return v == 3.0f; });
}

int run_rank(Rank& rank, const Options& options) {
  const Variant variants[2] = {
      options.one_shot ? by_template<AllReduceOneShot> : by_template<AllReduceTwoShot>,
      options.one_shot ? one_shot_by_hand : two_shot_by_hand};
  for (const Variant variant : variants) {
    if (!correct(rank, variant)) return 1;
  }
  std::vector<double> times[2];
  const int warmup = options.samples / 10 + 1;
  for (int i = -warmup; i < options.samples; ++i) {
    for (int k = 0; k < 2; ++k) {
      const int which = (i & 1) ^ k;
      const double ns = sample_ns(rank, variants[which], options.batch);
      if (i >= 0) times[which].push_back(ns);
    }
  }
  if (rank.peers.rank != 0) return 0;
  for (int which = 0; which < 2; ++which) {
    std::printf("%s", which == 0 ? "template" : "by-hand");
    for (const double ns : times[which]) std::printf(" %.0f", ns);
    std::printf("\n");
  }
  return 0;
}

int run(const Options& options) {
  ScratchLayout layout{};
  layout.payload_bytes = round_up(options.one_shot ? options.bytes : kLineBytes, kLineBytes);
  layout.rotation_bytes = 2 * layout.payload_bytes;  // two slots in turn, as by hand
  layout.block_bytes = options.block_bytes;
  layout.result_bytes = round_up(ceil_div(options.block_bytes, kRanks), kLineBytes);
  const size_t window = round_up(kFlagBytes + layout.total(), 4096);
  void* mapping = mmap(nullptr, kRanks * window, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapping == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  PeerView peers;
  peers.size = kRanks;
  for (int r = 0; r < kRanks; ++r) {
    char* begin = static_cast<char*>(mapping) + r * window;
    peers.flags[r] = reinterpret_cast<uint32_t*>(begin);
    peers.scratch[r] = begin + kFlagBytes;
  }
  const pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    return 1;
  }
  peers.rank = child == 0 ? 1 : 0;
  const uint64_t count = options.bytes / sizeof(float);
  const auto buffer = [&] {
    return static_cast<float*>(std::aligned_alloc(4096, round_up(options.bytes, 4096)));
  };
  Rank rank{peers,
            layout,
            reduce_function(DType::kFloat32, ReduceOp::kSum),
            options.block_bytes / sizeof(float),
            buffer(),
            buffer(),
            count};
  std::fill(rank.input, rank.input + count, static_cast<float>(peers.rank + 1));
  const int result = run_rank(rank, options);
  if (child == 0) _exit(result);
  int status = 0;
  waitpid(child, &status, 0);
  if (result != 0 || status != 0) std::fprintf(stderr, "schedule_cost: wrong sums\n");
  return result != 0 || status != 0;
}

}  // namespace
}  // namespace fastcomm

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "schedule_cost one-shot|two-shot BYTES SAMPLES BATCH BLOCK_BYTES\n");
    return 2;
  }
  return fastcomm::run(fastcomm::Options{std::string(argv[1]) == "one-shot", std::stoull(argv[2]),
                                         std::stoi(argv[3]), std::stoi(argv[4]),
                                         std::stoull(argv[5])});
}
