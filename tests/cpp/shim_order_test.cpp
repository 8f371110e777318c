// What the execution shim says about unordered uses of memory: its shadow of memory against a
// byte-by-byte model, and the order that streams, events, the host and captured graphs give; what
// is refused beside a capture, and what waits for the driver.
//
//   shim_order_test [CASE [SEED]]    CASE: shadow | streams | kernels | host | queues | capture |
//                                          beside | driver
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/multi_copy.h"
#include "local_world.h"

namespace fastcomm::testing {
namespace {

using shim::Access;
using shim::Actor;
using shim::Clock;
using shim::Order;
using shim::Step;

// ---- the shadow, and a model of it ----

struct Byte {
  Step write;
  std::vector<Step> reads;
};
using Found = std::set<std::tuple<uintptr_t, Actor, uint64_t, bool>>;  // byte, step, wrote

/// Steps that the model's byte is in conflict with.
void touch_model(std::vector<Byte>& bytes, const Access& access, const Step& step,
                 const Clock& clock, Found& found) {
  for (uintptr_t at = access.begin; at < access.begin + access.bytes; ++at) {
    Byte& byte = bytes[at];
    const auto look = [&](const Step& earlier, bool wrote) {
      if (clock.seen(earlier.actor) < earlier.number) {
        found.insert({at, earlier.actor, earlier.number, wrote});
      }
    };
    look(byte.write, true);
    if (!access.write) {
      byte.reads.push_back(step);
      continue;
    }
    for (const Step& read : byte.reads) look(read, false);
    byte.write = step;
    byte.reads.clear();
  }
}

/// Random accesses by a few actors that now and then learn from each other. Reads that the shadow
/// forgets because another one covers them are found through that one.
CASE(shadow) {
  std::mt19937_64 random(seed);
  constexpr Actor kActors = 4;
  constexpr uintptr_t kBytes = 64;
  for (int round = 0; round < 200; ++round) {
    shim::Shadow shadow;
    std::vector<Byte> model(kBytes);
    std::vector<Clock> clocks(kActors + 1);
    for (int i = 0; i < 60; ++i) {
      const auto actor = static_cast<Actor>(1 + random() % kActors);
      if (random() % 3 == 0) clocks[actor].join(clocks[1 + random() % kActors]);
      const uintptr_t begin = random() % kBytes;
      const Access access{begin, random() % (kBytes - begin), random() % 2 == 0};
      const Step step{actor, clocks[actor].tick(actor), std::make_shared<const std::string>("")};
      Found found, wanted;
      shadow.touch(access, step, clocks[actor],
                   [&](const Step& earlier, bool wrote, uintptr_t first, uint64_t count) {
                     for (uintptr_t at = first; at < first + count; ++at) {
                       found.insert({at, earlier.actor, earlier.number, wrote});
                     }
                   });
      touch_model(model, access, step, clocks[actor], wanted);
      for (const auto& each : found) EXPECT(wanted.count(each) == 1, "reported, and is in order");
      // Every byte in conflict is reported, though not with every read of it.
      std::set<std::pair<uintptr_t, bool>> seen, missed;
      for (const auto& [at, who, number, wrote] : found) seen.insert({at, wrote});
      for (const auto& [at, who, number, wrote] : wanted) missed.insert({at, wrote});
      EXPECT(seen == missed, "round ", round, ", access ", i, ": ", seen.size(), " of ",
             missed.size(), " bytes");
    }
  }
}

// ---- through the runtime ----

struct Setup {
  Setup() {
    configure(2, [](int, int) { return Link::kDirect; });
    for (cudaStream_t& stream : streams) {
      FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a test");
    }
    FC_CUDA(cudaEventCreateWithFlags(&event, 0), "a test");
    for (char*& each : memory) {
      void* made = nullptr;
      FC_CUDA(cudaMalloc(&made, 1000), "a test");
      each = static_cast<char*>(made);
    }
    static_cast<void>(Order::get().take_hazards());
  }
  ~Setup() {
    for (const cudaStream_t stream : streams) {
      static_cast<void>(cudaStreamSynchronize(stream));
      static_cast<void>(cudaStreamDestroy(stream));
    }
    static_cast<void>(cudaEventDestroy(event));
    for (char* each : memory) static_cast<void>(cudaFree(each));
  }
  void set(int stream, char* at, size_t bytes) {
    FC_CUDA(cudaMemsetAsync(at, 1, bytes, streams[stream]), "a test");
  }
  void copy(int stream, char* to, const char* from, size_t bytes) {
    FC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, streams[stream]), "a test");
  }
  void order(int first, int second) {
    FC_CUDA(cudaEventRecord(event, streams[first]), "a test");
    FC_CUDA(cudaStreamWaitEvent(streams[second], event, 0), "a test");
  }

  cudaStream_t streams[3];
  cudaEvent_t event = nullptr;
  char* memory[2];
};

/// Expects exactly `count` hazards, each of whose texts has all of `words`.
void expect_hazards(size_t count, const std::vector<std::string>& words, const char* what) {
  const std::vector<std::string> found = Order::get().take_hazards();
  EXPECT(found.size() == count, what, ": ", found.size(), " hazards instead of ", count, ": ",
         found.empty() ? "" : found[0]);
  for (const std::string& text : found) {
    for (const std::string& word : words) {
      EXPECT(text.find(word) != std::string::npos, what, ": no '", word, "' in: ", text);
    }
  }
}

CASE(streams) {
  Setup setup;
  char* const here = setup.memory[0];
  char* const there = setup.memory[1];
  setup.set(0, here, 100);
  setup.copy(1, there, here, 100);
  expect_hazards(1, {"cudaMemcpyAsync", "reads 100", "which cudaMemsetAsync", "writes"}, "read");
  setup.set(1, here + 100, 100);
  setup.set(0, here + 200, 100);
  expect_hazards(0, {}, "different bytes");
  setup.order(0, 1);
  setup.copy(1, there, here, 300);
  expect_hazards(0, {}, "an event");
  setup.order(1, 2);
  setup.set(2, here, 300);
  expect_hazards(0, {}, "an event behind an event");
  setup.set(0, here + 50, 10);
  expect_hazards(1, {"writes 10", "(device 0, stream "}, "write after write");
  // An event stands for its record, not for what its stream is given later.
  FC_CUDA(cudaEventRecord(setup.event, setup.streams[2]), "a test");
  setup.set(2, here, 10);
  FC_CUDA(cudaStreamWaitEvent(setup.streams[1], setup.event, 0), "a test");
  setup.set(1, here, 10);
  expect_hazards(1, {"writes 10"}, "behind the record");
}

/// A launch names what its kernel uses, by asking for views.
CASE(kernels) {
  Setup setup;
  setup.set(0, setup.memory[0], 100);
  const CopySegment segment{setup.memory[1], setup.memory[0], 100};
  launch_multi_copy(&segment, 1, setup.streams[1]);
  expect_hazards(1, {"multi_copy.cu: kernel", "reads 100"}, "a kernel");
  setup.order(1, 2);
  setup.set(2, setup.memory[1], 100);
  expect_hazards(0, {}, "behind the kernel");
  EXPECT(shim::next_accesses.empty(), "left for the next launch");
}

CASE(host) {
  Setup setup;
  char* const here = setup.memory[0];
  setup.set(0, here, 100);
  FC_CUDA(cudaStreamSynchronize(setup.streams[1]), "a test");
  setup.set(2, here, 100);
  expect_hazards(1, {}, "another stream's end");
  FC_CUDA(cudaStreamSynchronize(setup.streams[0]), "a test");
  FC_CUDA(cudaEventRecord(setup.event, setup.streams[2]), "a test");
  FC_CUDA(cudaEventSynchronize(setup.event), "a test");
  setup.set(1, here, 100);
  expect_hazards(0, {}, "the host has waited");
  while (cudaStreamQuery(setup.streams[1]) == cudaErrorNotReady) std::this_thread::yield();
  static_cast<void>(cudaGetLastError());
  setup.set(0, here, 100);
  expect_hazards(0, {}, "the host has asked");
  void* freed = nullptr;
  FC_CUDA(cudaMalloc(&freed, 100), "a test");
  FC_CUDA(cudaMemsetAsync(freed, 1, 100, setup.streams[0]), "a test");
  FC_CUDA(cudaFree(freed), "while it is used; leaves nothing that is looked at");
  expect_hazards(1, {"the host frees 100"}, "freed");
}

/// With one queue per device, what comes after a wait waits too, whatever its stream.
CASE(queues) {
  shim::Runtime::get().configure({{Link::kDirect}}, 1);
  cudaStream_t first = nullptr, second = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&first, 0), "a test");
  FC_CUDA(cudaStreamCreateWithFlags(&second, 0), "a test");
  shim::Signal gate;
  first->enqueue([&] { gate.wait(); });
  second->enqueue([] {});
  EXPECT(!second->idle(), "stands behind the first stream's work");
  gate.raise();
  FC_CUDA(cudaStreamSynchronize(second), "a test");
  EXPECT(first->idle() && second->idle(), "all is done");
}

CASE(capture) {
  Setup setup;
  char* const here = setup.memory[0];
  char* const there = setup.memory[1];
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  setup.set(2, here, 100);  // not part of the graph, and not ordered with it
  const auto mode = cudaStreamCaptureModeThreadLocal;
  FC_CUDA(cudaStreamBeginCapture(setup.streams[0], mode), "a test");
  setup.set(0, here, 100);
  setup.order(0, 1);
  setup.copy(1, there, here, 100);
  setup.order(1, 0);
  FC_CUDA(cudaStreamEndCapture(setup.streams[0], &graph), "a test");
  FC_CUDA(cudaGraphInstantiate(&exec, graph, 0), "a test");
  expect_hazards(0, {}, "a graph");
  FC_CUDA(cudaGraphLaunch(exec, setup.streams[0]), "a test");
  expect_hazards(1, {"replay of cudaMemsetAsync", "which cudaMemsetAsync"}, "its launch");
  FC_CUDA(cudaStreamSynchronize(setup.streams[0]), "a test");
  EXPECT(there[99] == 1, "replayed");

  FC_CUDA(cudaStreamBeginCapture(setup.streams[0], mode), "a test");
  setup.order(0, 1);
  setup.set(1, here, 10);
  setup.set(0, here, 10);
  EXPECT(cudaStreamEndCapture(setup.streams[0], &graph) == cudaErrorStreamCaptureUnjoined, "end");
  expect_hazards(1, {"writes 10"}, "within a graph");
  FC_CUDA(cudaEventRecord(setup.event, setup.streams[2]), "a test");
  FC_CUDA(cudaStreamBeginCapture(setup.streams[0], mode), "a test");
  EXPECT(cudaStreamWaitEvent(setup.streams[0], setup.event, 0) == cudaErrorStreamCaptureIsolation,
         "an event of elsewhere");
  FC_CUDA(cudaEventRecord(setup.event, setup.streams[0]), "a test");
  EXPECT(cudaStreamWaitEvent(nullptr, setup.event, 0) == cudaErrorStreamCaptureImplicit,
         "the default stream");
  FC_CUDA(cudaStreamEndCapture(setup.streams[0], &graph), "a test");
  FC_CUDA(cudaGraphExecDestroy(exec), "a test");
}

/// Ends a capture of the first stream, and tells whether it has stayed valid.
bool ends_well(Setup& setup) {
  cudaGraph_t graph = nullptr;
  const cudaError_t result = cudaStreamEndCapture(setup.streams[0], &graph);
  EXPECT(result == cudaSuccess || result == cudaErrorStreamCaptureInvalidated, result);
  if (result == cudaSuccess) FC_CUDA(cudaGraphDestroy(graph), "a test");
  return result == cudaSuccess;
}

/// Calls on another thread, beside a capture; `mode` is that thread's.
CASE(beside) {
  Setup setup;
  const auto ask = [&] {
    void* memory = nullptr;
    const cudaError_t result = cudaMalloc(&memory, 100);
    if (result == cudaSuccess) static_cast<void>(cudaFree(memory));
    return result;
  };
  const auto elsewhere = [&](cudaStreamCaptureMode mode, const auto& call) {
    cudaError_t result = cudaSuccess;
    std::thread([&] {
      cudaStreamCaptureMode before = mode;
      FC_CUDA(cudaThreadExchangeStreamCaptureMode(&before), "a test");
      result = call();
    }).join();
    return result;
  };
  const auto query = [&] { return cudaEventQuery(setup.event); };
  constexpr auto kGlobal = cudaStreamCaptureModeGlobal, kLocal = cudaStreamCaptureModeThreadLocal,
                 kRelaxed = cudaStreamCaptureModeRelaxed;
  for (const auto captured : {kGlobal, kLocal, kRelaxed}) {
    for (const auto mode : {kGlobal, kLocal, kRelaxed}) {
      for (const std::function<cudaError_t()>& call :
           std::vector<std::function<cudaError_t()>>{ask, query}) {
        FC_CUDA(cudaStreamBeginCapture(setup.streams[0], captured), "a test");
        const bool refused = captured == kGlobal && mode == kGlobal;
        EXPECT((elsewhere(mode, call) == cudaErrorStreamCaptureUnsupported) == refused, captured,
               " ", mode);
        if (refused) {
          EXPECT(cudaMemsetAsync(setup.memory[0], 1, 1, setup.streams[0]) ==
                     cudaErrorStreamCaptureInvalidated,
                 "nothing is added to what is invalid");
        }
        EXPECT(ends_well(setup) == !refused, captured, " ", mode);
      }
    }
    // The capturing thread itself.
    FC_CUDA(cudaStreamBeginCapture(setup.streams[0], captured), "a test");
    EXPECT((ask() == cudaSuccess) == (captured == kRelaxed), captured);
    EXPECT(ends_well(setup) == (captured == kRelaxed), captured);
    // A wait for the whole device, or for what is captured, in any mode.
    const auto wait = [&] { return cudaStreamSynchronize(setup.streams[0]); };
    for (const auto& call :
         std::vector<std::function<cudaError_t()>>{cudaDeviceSynchronize, query, wait}) {
      FC_CUDA(cudaStreamBeginCapture(setup.streams[0], captured), "a test");
      FC_CUDA(cudaEventRecord(setup.event, setup.streams[0]), "a test");
      EXPECT(elsewhere(kRelaxed, call) == cudaErrorStreamCaptureUnsupported, captured);
      EXPECT(!ends_well(setup), captured);
      FC_CUDA(cudaEventRecord(setup.event, setup.streams[1]), "a test");
    }
    FC_CUDA(cudaStreamBeginCapture(setup.streams[0], captured), "a test");
    EXPECT(elsewhere(kRelaxed,
                     [] {
                       FC_CUDA(cudaSetDevice(1), "a test");
                       return cudaDeviceSynchronize();
                     }) == cudaSuccess,
           "another device");
    EXPECT(ends_well(setup), captured);
  }
  static_cast<void>(cudaGetLastError());
}

/// Launches, allocations and queries wait while another thread holds the driver.
CASE(driver) {
  Setup setup;
  FC_CUDA(cudaEventRecord(setup.event, setup.streams[1]), "a test");
  shim::Signal gate;
  setup.streams[0]->enqueue([&] { gate.wait(); });
  std::atomic<bool> held{false}, released{false};
  std::thread holder([&] {
    shim::with_driver([&] {
      held = true;
      while (shim::busy_streams[0] != 0) usleep(100);
      released = true;
    });
  });
  while (!held) usleep(100);
  void* memory = nullptr;
  std::vector<std::thread> callers;
  const auto waits = [&](const char* what, const std::function<void()>& call) {
    callers.emplace_back([&released, what, call] {
      call();
      EXPECT(released, what);
    });
  };
  waits("a launch", [&] { setup.set(1, setup.memory[0], 1); });
  waits("an allocation", [&] { FC_CUDA(cudaMalloc(&memory, 100), "a test"); });
  waits("a query", [&] { static_cast<void>(cudaEventQuery(setup.event)); });
  waits("a mode", [] {
    auto mode = cudaStreamCaptureModeRelaxed;
    static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
  });
  usleep(20'000);
  gate.raise();
  holder.join();
  for (std::thread& each : callers) each.join();
  FC_CUDA(cudaFree(memory), "a test");
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
