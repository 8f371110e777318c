// The order between processes that share memory of devices, under the execution shim: what flags,
// streams, events, the host and handles order, and that what they leave unordered is reported,
// whatever the timing.
//
//   shim_ipc_order_test [CASE [SEED]]
//   CASE: shadow | clocks | words | host
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "core/touches.h"
#include "ipc_world.h"
#include "kernels/cuda_api.h"

namespace fastcomm::testing {
namespace {

using shim::block_worker;
using shim::SharedShadow;
using shim::SharedUse;
using shim::stream_worker;
using shim::thread_worker;
using shim::WideClock;
using shim::work_number;
using shim::Worker;

/// Random uses by a few workers that now and then learn from each other, against a bytewise model.
CASE(shadow) {
  std::mt19937_64 random(seed);
  constexpr uint32_t kWorkers = 4;
  constexpr uint64_t kBytes = 64;
  using Found = std::set<std::tuple<uint64_t, bool>>;  // byte, wrote
  struct Byte {
    SharedUse write{};
    std::vector<SharedUse> reads;
  };
  for (int round = 0; round < 200; ++round) {
    const auto shadow = std::make_unique<SharedShadow>();
    std::vector<Byte> model(kBytes);
    std::vector<WideClock> clocks(kWorkers);
    for (uint64_t i = 1; i <= 60; ++i) {
      const auto who = static_cast<uint32_t>(random() % kWorkers);
      if (random() % 3 == 0) clocks[who].join(clocks[random() % kWorkers]);
      const uint64_t begin = random() % kBytes;
      const uint64_t end = begin + random() % (kBytes - begin);
      const bool write = random() % 2 == 0;
      const SharedUse use{stream_worker(who + 1, 0), work_number(i, shim::kWholeLaunch), 0};
      clocks[who].learn(use.worker, use.number);
      Found found, wanted;
      const auto note = [&](const SharedUse&, bool wrote, uint64_t at, uint64_t bytes) {
        for (uint64_t byte = at; byte < at + bytes; ++byte) found.insert({byte, wrote});
      };
      EXPECT(shadow->touch(begin, end, write, use, clocks[who], note), "there is room");
      EXPECT(shadow->touch(begin, end, write, use, clocks[who], note), "the same again");
      for (uint64_t at = begin; at < end; ++at) {
        const auto look = [&](const SharedUse& earlier, bool wrote) {
          if (earlier.worker == 0 || clocks[who].seen(earlier.worker, earlier.number)) return;
          wanted.insert({at, wrote});
        };
        look(model[at].write, true);
        if (!write) {
          model[at].reads.push_back(use);
          continue;
        }
        for (const SharedUse& read : model[at].reads) look(read, false);
        model[at] = {use, {}};
      }
      EXPECT(found == wanted, "round ", round, ", use ", i, ": ", found.size(), " of ",
             wanted.size());
    }
  }
  const auto full = std::make_unique<SharedShadow>();
  const auto nobody = [](const SharedUse&, bool, uint64_t, uint64_t) {};
  bool room = true;
  uint64_t ranges = 0;
  for (; room && ranges < 2 * SharedShadow::kMostRanges; ++ranges) {
    room = full->touch(ranges * 8, ranges * 8 + 4, true, {1, 1, 0}, {}, nobody);
  }
  EXPECT(!room && ranges == SharedShadow::kMostRanges + 1, "full after ", ranges);
}

CASE(clocks) {
  const Worker stream = stream_worker(7, 3), other = stream_worker(8, 3);
  const Worker block = block_worker(stream, 2), thread = thread_worker(block, 1);
  WideClock clock;
  EXPECT(!clock.seen(stream, work_number(1, 1)), "nothing yet");
  clock.learn(thread, work_number(2, 1));
  EXPECT(clock.seen(thread, work_number(2, 1)) && !clock.seen(block, work_number(2, 1)), "thread");
  clock.learn(block, work_number(2, 3));
  EXPECT(clock.seen(thread, work_number(2, 3)) && !clock.seen(block, work_number(2, 4)), "block");
  EXPECT(!clock.seen(block_worker(stream, 1), work_number(2, 1)), "another block");
  clock.learn(stream, work_number(2, shim::kWholeLaunch));
  EXPECT(clock.seen(block_worker(stream, 1), work_number(2, 9)), "of a launch that is over");
  EXPECT(!clock.seen(block, work_number(3, 1)), "the next launch");
  EXPECT(!clock.seen(other, work_number(1, 1)), "another process");
  const auto flat = std::make_unique<shim::FlatClock>();
  EXPECT(clock.store(*flat) && flat->count == 1, "what is covered is forgotten: ", flat->count);
  WideClock copy;
  copy.join(*flat);
  EXPECT(copy.seen(thread, work_number(2, 5)), "through memory");
  for (uint32_t i = 0; i < shim::FlatClock::kMost; ++i) clock.learn(stream_worker(i + 9, 1), 1);
  EXPECT(!clock.store(*flat) && flat->count == 0, "too many workers");
}

// ---- through the runtime ----

constexpr size_t kData = 256;  // after the flag

__global__ void say(char* window, uint32_t value) {
  FC_TOUCHES(window + kData, 64, true);
  window[kData + threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) store_flag(reinterpret_cast<uint32_t*>(window), value);
}
/// One thread writes and stores the flag, without a barrier; declared as its own use, or the
/// block's.
__global__ void say_alone(char* window, uint32_t value, bool alone) {
  if (threadIdx.x != 0) return;
  if (alone) {
    FC_THREAD_TOUCHES(window + 512, 8, true);
  } else {
    FC_TOUCHES(window + 512, 8, true);
  }
  window[512] = 1;
  store_flag(reinterpret_cast<uint32_t*>(window), value);
}
__global__ void hear(const char* window, uint32_t value) {
  while (!reached(load_flag(reinterpret_cast<const uint32_t*>(window)), value)) FC_YIELD(0);
}

/// Each kind of order, present and missing. Ranks meet by their sockets, which order nothing here.
CASE(words) {
  const auto body = [](const IpcRank& self) {
    const cudaStream_t stream = make_stream(), second = make_stream();
    const auto windows = windows_of(self, 1024, stream);
    char* const window = windows[0];
    char* const seen = device_view(0, window, Touch::kWrite);
    const bool first = self.rank == 0;
    const auto meet = [&] {
      wait(stream);
      wait(second);
      self.meet();
    };
    expect_hazards({}, "handles order what was before them");
    // 1: a flag, and work after the wait for it, in its stream and by an event in another.
    if (first) {
      FC_LAUNCH(say, dim3(1), dim3(2), stream, seen, 1u);
    } else {
      FC_LAUNCH(hear, dim3(1), dim3(1), stream, seen, 1u);
      set(window + kData, 8, stream);
      order(stream, second);
      set(window + kData + 8, 8, second);
    }
    meet();
    expect_hazards({}, "a flag");
    // 2: the same bytes again, with nothing but the sockets in between.
    if (first) FC_LAUNCH(say, dim3(1), dim3(2), stream, seen, 2u);
    meet();
    std::vector<std::vector<std::string>> twice = {
        {"say (device 0, stream", ", block 0 writes 8 bytes at 256 of memory of process",
         "which cudaMemsetAsync", " writes, and nothing orders"},
        {"writes 8 bytes at 264"}};
    expect_hazards(first ? twice : decltype(twice){}, "written back without an order");
    // 3: seen in one stream, used in another.
    if (!first) {
      FC_LAUNCH(hear, dim3(1), dim3(1), stream, seen, 2u);
      std::vector<char> copy(64);
      FC_CUDA(cudaMemcpyAsync(copy.data(), window + kData, 64, cudaMemcpyDefault, second),
              "a test");
      wait(second);
    }
    meet();
    std::vector<std::vector<std::string>> once = {{"cudaMemcpyAsync (device 0, stream ",
                                                   "reads 64 bytes at 256 of memory of process",
                                                   "which", "say", "block 0 writes"}};
    expect_hazards(first ? decltype(once){} : once, "no event");
    // 4: the host has waited for the stream that has seen it.
    if (!first) {
      set(window + kData, 64, second);
      wait(second);
    }
    meet();
    expect_hazards({}, "the host");
    // 5: a thread that orders its own uses needs no barrier; a block does.
    for (const bool alone : {true, false}) {
      const uint32_t value = alone ? 3 : 4;
      if (first) {
        FC_LAUNCH(say_alone, dim3(1), dim3(2), stream, seen, value, alone);
      } else {
        FC_LAUNCH(hear, dim3(1), dim3(1), stream, seen, value);
        set(window + 512, 4, stream);
      }
      meet();
      std::vector<std::vector<std::string>> unordered;
      if (!alone && first) unordered = {{"say_alone", "writes 4 bytes at 512", "cudaMemset"}};
      if (!alone && !first) unordered = {{"cudaMemset", "writes 4 bytes at 512", "say_alone"}};
      expect_hazards(unordered, alone ? "a thread" : "a block without its barrier");
    }
    // 6: flags set to zero while somebody looks at them.
    if (first) set(window, 4, second);
    meet();
    std::vector<std::vector<std::string>> zero = {
        {"cudaMemsetAsync", "writes 4 bytes at 0", "hear", "reads"}};
    expect_hazards(first ? zero : decltype(zero){}, "a flag that is set");
  };
  run_ipc_ranks(2, body);
  run_ipc_ranks(2, body, /*hidden=*/true);
}

/// Memory that is unmapped in the moment in which a stream begins to use it, over and over: what
/// the stream needs to say so is still there.
void unmap_while_used(const IpcRank& self, uint64_t seed) {
  std::mt19937_64 random(seed + self.rank);
  const cudaStream_t stream = make_stream();
  char* const own = device_memory(64);
  set(own, 64, stream);
  wait(stream);
  cudaIpcMemHandle_t handle;
  FC_CUDA(cudaIpcGetMemHandle(&handle, own), "a test");
  const cudaIpcMemHandle_t theirs = self.exchange(handle)[1 - self.rank];
  for (int round = 0; round < 300; ++round) {
    void* peer = nullptr;
    FC_CUDA(cudaIpcOpenMemHandle(&peer, theirs, cudaIpcMemLazyEnablePeerAccess), "a test");
    set(static_cast<char*>(peer), 64, stream);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 30);
    while (std::chrono::steady_clock::now() < until) continue;
    FC_CUDA(cudaIpcCloseMemHandle(peer), "while it is used");
    wait(stream);
    EXPECT(!shim::Order::get().take_hazards().empty(), "round ", round);
  }
  self.meet();
}

/// What the host does wrong with memory that others have.
CASE(host) {
  run_ipc_ranks(2, [&](const IpcRank& self) { unmap_while_used(self, seed); });
  run_ipc_ranks(2, [](const IpcRank& self) {
    const cudaStream_t stream = make_stream();
    char* const early = device_memory(100);
    set(early, 100, stream);
    cudaIpcMemHandle_t handle;
    FC_CUDA(cudaIpcGetMemHandle(&handle, early), "a test");
    expect_hazards({{"the host exports 100 bytes", "has not waited"}}, "exported too early");
    wait(stream);
    const auto windows = windows_of(self, 1024, stream);
    char* const own = windows[self.rank];
    // Unmapped and freed before a stream has come to its use, which still finds all that it needs.
    const cudaStream_t second = make_stream();
    for (char* const used : {windows[1 - self.rank], own}) {
      char* const flag = used == own ? device_memory(1024) : own;
      if (used == own) set(flag, 1024, second);
      wait(second);
      FC_LAUNCH(hear, dim3(1), dim3(1), stream, flag, 1u);
      set(used + 16, 1, stream);
      FC_CUDA(used == own ? cudaFree(used) : cudaIpcCloseMemHandle(used), "while it is used");
      expect_hazards({{"the host frees 1 bytes"}}, used == own ? "freed" : "unmapped");
      FC_LAUNCH(say_alone, dim3(1), dim3(1), second, flag, 1u, true);
      wait(second);
      wait(stream);
      shim::Order::get().take_hazards();
      self.meet();
    }
  });
  run_ipc_ranks(2, [](const IpcRank& self) {
    const cudaStream_t stream = make_stream();
    const auto windows = windows_of(self, 1024, stream);
    self.meet();
    if (self.rank == 0) {
      FC_CUDA(cudaFree(windows[0]), "a test");
      expect_hazards({{"another process has still mapped"}}, "freed");
    }
    self.meet();
    if (self.rank == 1) {
      set(windows[0], 16, stream);
      set(windows[0], 16, stream);
      wait(stream);
      expect_hazards(
          {{"cudaMemsetAsync", "writes 16 bytes at 0 of memory that process", "has freed"}},
          "used behind its end");
    }
  });
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
