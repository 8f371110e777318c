// A group of devices: verdicts on their access to each other, the order that marks and waits give,
// pinned memory, the guard of the current device, and what the execution shim promises about
// streams and events. On the host under the shim, or on a GPU when compiled by nvcc.
//
//   shim_device_set_test [CASE [SEED]]    CASE: streams | strict | stale | busy | contexts
//                                                 | verdicts | meet | staging | guard
//                                                 | errors | setting | fork
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/device_guard.h"
#include "core/env.h"
#include "kernels/cuda/multi_copy.h"
#include "local_world.h"

namespace fastcomm::testing {
namespace {

#if defined(FC_SHIM)
/// A stream runs in order and later; an event orders two streams, and may be destroyed while
/// pending.
CASE(streams) {
  configure(2, [](int, int) { return Link::kNone; });
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t event = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), "a test");
  FC_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), "a test");
  FC_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a test");
  EXPECT(cudaEventQuery(event) == cudaSuccess, "never recorded");

  shim::Signal gate;  // holds the first stream back
  std::vector<int> order;
  first->enqueue([&] { gate.wait(); });
  first->enqueue([&] { order.push_back(1); });
  FC_CUDA(cudaEventRecord(event, first), "a test");
  FC_CUDA(cudaStreamWaitEvent(second, event, 0), "a test");
  second->enqueue([&] { order.push_back(2); });
  EXPECT(cudaEventQuery(event) == cudaErrorNotReady, "its stream is held back");
  FC_CUDA(cudaEventDestroy(event), "while it is pending");
  gate.raise();
  FC_CUDA(cudaStreamSynchronize(second), "a test");
  EXPECT(order == (std::vector<int>{1, 2}), "order");

  // A wait stands for the record before it, not for a later one.
  FC_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a test");
  FC_CUDA(cudaEventRecord(event, first), "a test");
  FC_CUDA(cudaStreamWaitEvent(second, event, 0), "a test");
  shim::Signal late;
  first->enqueue([&] { late.wait(); });
  FC_CUDA(cudaEventRecord(event, first), "a test");
  FC_CUDA(cudaStreamSynchronize(second), "a test");
  EXPECT(cudaEventQuery(event) == cudaErrorNotReady, "the second record");
  late.raise();
  FC_CUDA(cudaEventSynchronize(event), "a test");
  FC_CUDA(cudaEventDestroy(event), "a test");
  FC_CUDA(cudaStreamDestroy(first), "a test");
  FC_CUDA(cudaStreamDestroy(second), "a test");
}

/// The shim refuses what CUDA refuses.
CASE(strict) {
  configure(2, [](int, int) { return Link::kDirect; });
  const DeviceGuard guard(1);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a test");
  FC_CUDA(cudaMalloc(&memory, 64), "a test");
  FC_CUDA(cudaSetDevice(0), "a test");
  FC_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a test");
  EXPECT(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle, "an event of device 0");
  EXPECT(cudaMemsetAsync(memory, 0, 64, stream) == cudaErrorInvalidResourceHandle, "a stream of 1");
  EXPECT(cudaGetLastError() == cudaErrorInvalidResourceHandle, "the last error stays");
  EXPECT(cudaGetLastError() == cudaSuccess, "once");
  EXPECT(cudaSetDevice(2) == cudaErrorInvalidDevice, "no such device");
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidDevice, "it can be looked at");
  EXPECT(cudaGetLastError() == cudaErrorInvalidDevice, "and stays meanwhile");
  const auto illegal = [&](int device, const void* pointer) {
    try {
      device_view(device, pointer, Touch::kRead);
    } catch (const std::logic_error&) {
      return true;
    }
    return false;
  };
  char host = 0;
  EXPECT(illegal(0, memory), "access that nobody enabled");
  EXPECT(!illegal(1, memory), "its own memory");
  EXPECT(illegal(1, &host), "ordinary memory of the host");
  FC_CUDA(cudaDeviceEnablePeerAccess(1, 0), "a test");
  EXPECT(!illegal(0, memory), "enabled");
  EXPECT(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled, "twice");
  static_cast<void>(cudaGetLastError());
}
#endif

#if defined(FC_SHIM)
/// Somebody else's error is not taken for ours, and stays for whoever looks for it; ours is
/// reported, and leaves nothing behind.
CASE(stale) {
  configure(2, [](int, int) { return Link::kDirect; });
  void* memory = nullptr;
  FC_CUDA(cudaMalloc(&memory, 64), "a test");
  char* const bytes = static_cast<char*>(memory);
  const CopySegment segment{bytes + 32, bytes, 16};
  const auto copy = [&](cudaStream_t stream) {
    return error_of([&] { launch_multi_copy(&segment, 1, stream); });
  };
  cudaStream_t other = nullptr;
  {
    const DeviceGuard guard(1);
    FC_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "a test");
  }
  EXPECT(copy(nullptr).empty(), "nothing is wrong");
  EXPECT(cudaMalloc(&memory, ~size_t{0}) == cudaErrorMemoryAllocation, "somebody else's error");
  EXPECT(copy(nullptr).empty(), copy(nullptr));
  PeerAccess access(probe_peers, true);
  EXPECT(access.between(0, 1).kind == AccessKind::kDirect, access.between(0, 1).reason);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation, "it is still there");
  const std::string text = copy(other);
  EXPECT(text.find("invalid resource handle (device 0): multi_copy of 1 segments") !=
             std::string::npos,
         text);
  EXPECT(cudaGetLastError() == cudaSuccess, "and taken away");
  FC_CUDA(cudaStreamSynchronize(nullptr), "a test");
  FC_CUDA(cudaStreamDestroy(other), "a test");
}
#endif

int probes = 0;
ProbeResult counted_probe(int, int, int) {
  ++probes;
  return {};
}

CASE(verdicts) {
  const auto is = [](const Access& found, AccessKind kind, const std::string& words) {
    EXPECT(found.kind == kind && found.reason.find(words) != std::string::npos,
           access_kind_name(found.kind), ", ", found.reason, "; not ", words);
  };
  {
    PeerAccess found(probe_peers, true);
    is(found.between(0, 0), AccessKind::kSame, "one memory");
    ErrorCode code = ErrorCode::kSystem;
    error_of([&] { found.between(0, 99); }, &code);
    EXPECT(code == ErrorCode::kInvalidArgument, "no device 99");
    const ProbeResult own = probe_peers(0, 0);  // both sides on one device: what one GPU can show
    EXPECT(own.wrong.empty() && !own.busy, own.wrong);
  }
#if defined(FC_SHIM)
  configure(6, [](int a, int b) {
    if (a == 0 || b == 0) return Link::kNone;
    if (a == 1 && b == 2) return Link::kBrokenReads;
    if (a == 4 && b == 1) return Link::kLostWrites;
    if (a == 5 && b == 1) return Link::kNone;
    return Link::kDirect;
  });
  PeerAccess found(probe_peers, true);
  is(found.between(0, 1), AccessKind::kStaged, "the driver grants no peer access");
  for (const auto& [a, b] : {std::pair{1, 2}, {2, 1}}) {
    is(found.between(a, b), AccessKind::kStaged, "a probe read wrong bits");
  }
  for (const auto& [a, b] : {std::pair{1, 4}, {4, 1}}) {
    is(found.between(a, b), AccessKind::kStaged, "wrote to the other device did not arrive");
  }
  is(found.between(1, 5), AccessKind::kStaged, "the driver grants no peer access");
  is(found.between(1, 3), AccessKind::kDirect, "confirmed every bit");
  is(found.between(3, 2), AccessKind::kDirect, "confirmed every bit");

  probes = 0;
  PeerAccess off(counted_probe, false);
  is(off.between(1, 3), AccessKind::kStaged, "FASTCOMM_PEER_ACCESS=off");
  EXPECT(probes == 0, "nothing was to be tried");

  PeerAccess once(counted_probe, true);  // enabled by the one above: no error
  std::vector<std::thread> askers;
  for (int i = 0; i < 4; ++i) askers.emplace_back([&] { once.between(1, 3); });
  for (std::thread& asker : askers) asker.join();
  once.between(3, 1);
  EXPECT(probes == 1, "probed ", probes, " times");

  shim::Runtime::get().most_bytes = 4096;  // the probe gets no memory
  PeerAccess poor(probe_peers, true);
  is(poor.between(1, 3), AccessKind::kStaged, "out of memory (device 1)");
  shim::Runtime::get().most_bytes = size_t{1} << 40;
  EXPECT(cudaGetLastError() == cudaSuccess, "no error is left behind");
#endif
}

#if defined(FC_SHIM)
int busy_probes = 0;  // how many of the next ones find the devices busy
ProbeResult busy_probe(int device, int peer, int tries) {
  ++probes;
  if (busy_probes == 0) return probe_peers(device, peer, tries);
  --busy_probes;
  return {"a test's devices are busy", true};
}
uint64_t test_clock = 0;
uint64_t test_now() { return test_clock; }

/// A verdict caused only by a busy device is re-examined: later, more and more rarely, never in a
/// capture, and by operations themselves.
CASE(busy) {
  constexpr uint64_t kSecond = 1'000'000'000;
  configure(4, [](int, int) { return Link::kDirect; });
  probes = 0;
  busy_probes = 3;
  PeerAccess access(busy_probe, true, test_now);
  const Access& first = access.between(0, 1);
  EXPECT(first.kind == AccessKind::kStaged && first.unproved, first.reason);
  EXPECT(first.reason.find("for now it is unproved: a test's") != std::string::npos, first.reason);
  EXPECT(&access.look_again(0, 1) == &first && probes == 1, "at once: ", probes, " probes");
  test_clock += 10 * kSecond;
  EXPECT(access.look_again(0, 1).unproved && probes == 2, "10 s later: ", probes, " probes");
  test_clock += 19 * kSecond;
  EXPECT(access.look_again(1, 0).unproved && probes == 2, "19 s later: ", probes, " probes");

  DeviceSet group({0, 1, 0}, access);
  Streams streams(3);
  test_clock += 1 * kSecond;
  group.look_again(streams);
  EXPECT(!group.direct(0, 1) && probes == 3, "20 s later: ", probes, " probes");
  test_clock += 40 * kSecond;  // the devices are free now
  FC_CUDA(cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking), "a test");
  FC_CUDA(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal), "a test");
  group.look_again(streams);
  EXPECT(!group.direct(0, 1) && probes == 3, "in a capture: ", probes, " probes");
  cudaGraph_t graph = nullptr;
  FC_CUDA(cudaStreamEndCapture(streams[0], &graph), "a test");
  group.look_again(streams);
  EXPECT(group.direct(0, 1) && group.direct(1, 2) && probes == 4, group.access(0, 1).reason);
  EXPECT(first.unproved && access.between(0, 1).kind == AccessKind::kDirect, "verdicts stay");
  test_clock += 1000 * kSecond;
  group.look_again(streams);
  EXPECT(probes == 4, "found out");

  // Anything a probe raises is a reason to stage.
  PeerAccess refused(
      [](int, int, int) -> ProbeResult { throw std::runtime_error("there is no thread"); }, true);
  const Access& without = refused.between(2, 3);
  EXPECT(without.kind == AccessKind::kStaged &&
             without.reason.find("there is no thread") != std::string::npos,
         without.reason);

  // Between two operations of one group, each of which has the right bytes.
  busy_probes = 1;
  PeerAccess later(busy_probe, true, test_now);
  LocalWorld world({0, 1}, later, {}, seed);
  for (const bool direct : {false, true}) {
    Buffer& from = world.add(0, 5000, 1);
    Buffer& to = world.add(1, 5000, 3);
    to.want(from.content());
    world.run("broadcast", [&] {
      world.exchange.copy({{0, from.data(), 5000, {nullptr, to.data()}}}, world.streams);
    });
    EXPECT(world.group.direct(1, 0) == direct, later.between(0, 1).reason);
    test_clock += 1000 * kSecond;
  }
  world.finish();
}

#endif

/// Every rank writes its own cell; after they have met, every rank's stream reads all cells.
CASE(meet) {
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<int> devices(ranks, 0);
#if defined(FC_SHIM)
    configure(ranks, [](int, int) { return Link::kDirect; });
    for (int rank = 0; rank < ranks; ++rank) devices[rank] = rank / 2;
#endif
    PeerAccess access(probe_peers, true);
    LocalWorld world(devices, access, {}, seed + ranks);
    std::vector<Buffer*> sources;
    std::vector<std::vector<CopySegment>> segments(ranks);
    for (int rank = 0; rank < ranks; ++rank) sources.push_back(&world.add(rank, 300, 1));
    for (int rank = 0; rank < ranks; ++rank) {
      for (Buffer* source : sources) {
        Buffer& copy = world.add(rank, 300, 1);
        copy.want(source->content());
        segments[rank].push_back({copy.data(), source->data(), 300});
      }
    }
    world.run("meet", [&] {
      DeviceGuard guard;
      world.group.meet(Mark::kReady, world.streams, guard);
      for (int rank = 0; rank < ranks; ++rank) {
        guard.set(devices[rank]);
        launch_multi_copy(segments[rank].data(), ranks, world.streams[rank]);
      }
      world.group.meet(Mark::kFinished, world.streams, guard);
    });
    world.finish();
  }
}

CASE(staging) {
#if defined(FC_SHIM)
  configure(2, [](int, int) { return Link::kNone; });
#endif
  PeerAccess access(counted_probe, false);
  DeviceSetOptions options;
  options.most_staging_bytes = 1 << 20;
  DeviceSet group({0, 0}, access, options);
  const Staging small = group.staging(1);
  EXPECT(small.half_bytes == DeviceSet::kLeastStagingBytes / 2, small.half_bytes);
  EXPECT(group.staging(small.half_bytes).memory == small.memory, "large enough");
  const Staging large = group.staging(small.half_bytes + 1);
  EXPECT(large.half_bytes == 2 * small.half_bytes && large.memory != small.memory, "doubled");
  EXPECT(group.staging(1).memory == large.memory, "never shrinks");
  EXPECT(group.staging(uint64_t{1} << 40).half_bytes == options.most_staging_bytes / 2, "bounded");
}

CASE(guard) {
#if defined(FC_SHIM)
  configure(3, [](int, int) { return Link::kNone; });
  const auto current = [] {
    int device = -1;
    FC_CUDA(cudaGetDevice(&device), "a test");
    return device;
  };
  FC_CUDA(cudaSetDevice(1), "a test");
  {
    DeviceGuard guard(2);
    EXPECT(current() == 2, "set");
    guard.set(0);
    EXPECT(current() == 0, "set again");
  }
  EXPECT(current() == 1, "restored");
  const std::string text = error_of([] {
    DeviceGuard guard(2);
    guard.set(7);
  });
  EXPECT(text.find("cudaSetDevice: invalid device ordinal (device 2): to make device 7 current") !=
             std::string::npos,
         text);
  EXPECT(current() == 1, "restored after an error");
  {
    PeerAccess access(probe_peers, true);
    DeviceSet group({2, 0, 2}, access);
    EXPECT(current() == 1, "a group leaves the device as it was");
  }
  EXPECT(current() == 1, "also when it goes");
  FC_CUDA(cudaSetDevice(0), "a test");
#endif
}

#if defined(FC_SHIM)
/// Work on other devices makes no context on the device that is current by default.
CASE(contexts) {
  configure(4, [](int, int) { return Link::kDirect; });
  std::thread([&] {  // a thread whose device nobody has set
    for (std::atomic<bool>& context : shim::contexts) context = false;
    const auto current = [] {
      int device = -1;
      FC_CUDA(cudaGetDevice(&device), "a test");
      return device;
    };
    {
      DeviceGuard guard(2);
      EXPECT(current() == 2 && shim::contexts[2], "set");
      guard.set(1);
      {
        DeviceGuard inner(3);
        EXPECT(current() == 3, "within another");
      }
      EXPECT(current() == 1, "back in the other");
      guard.set(0);
      EXPECT(current() == 0, "back itself");
      guard.set(1);
    }
    EXPECT(current() == 0 && shim::runtime_device == 0, "restored");
    error_of([] { DeviceGuard guard(7); });
    EXPECT(current() == 0, "restored after an error");
    {
      PeerAccess access(probe_peers, true);
      LocalWorld world({1, 2}, access, {}, seed);
      EXPECT(world.group.direct(0, 1), access.between(1, 2).reason);
      Buffer& from = world.add(0, 5000, 1);
      Buffer& to = world.add(1, 5000, 3);
      to.want(from.content());
      world.run("broadcast", [&] {
        world.exchange.copy({{0, from.data(), 5000, {nullptr, to.data()}}}, world.streams);
      });
      world.group.staging(1);
    }
    EXPECT(current() == 0 && !shim::contexts[0], "device 0 is as it was");
    {
      DeviceGuard guard(2);
      FC_CUDA(cudaSetDevice(3), "what somebody else may do");
    }
    EXPECT(current() == 0 && shim::contexts[0], "the right device all the same");
    {
      DeviceGuard guard(2);
    }
    EXPECT(current() == 0 && shim::runtime_device == 0, "with a context");
  })
      .join();
}
#endif

#if defined(FC_SHIM)
/// Another thread's capture survives all that a group does, from its first probe to its end.
CASE(captured) {
  for (const Link link : {Link::kDirect, Link::kNone}) {
    configure(3, [&](int, int) { return link; });
    cudaStream_t stream = nullptr;
    FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a test");
    std::atomic<bool> begun{false}, done{false};
    cudaError_t ended = cudaSuccess;
    std::thread capturing([&] {
      FC_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "a test");
      begun = true;
      while (!done) usleep(100);
      cudaGraph_t graph = nullptr;
      ended = cudaStreamEndCapture(stream, &graph);
    });
    while (!begun) usleep(100);
    {
      PeerAccess access(probe_peers, true);
      DeviceSet group({0, 1}, access, little_staging());
      EXPECT(group.direct(0, 1) == (link == Link::kDirect), access.between(0, 1).reason);
      group.staging(1);
      group.staging(1 << 20);  // more of it
    }
    done = true;
    capturing.join();
    EXPECT(ended == cudaSuccess, cudaGetErrorString(ended));
    FC_CUDA(cudaStreamDestroy(stream), "a test");
  }
}
#endif

CASE(errors) {
#if defined(FC_SHIM)
  configure(2, [](int, int) { return Link::kNone; });
#endif
  PeerAccess access(probe_peers, true);
  const auto wrong_ranks = [&](int ranks) {
    ErrorCode code = ErrorCode::kSystem;
    const std::string text =
        error_of([&] { DeviceSet group(std::vector<int>(ranks, 0), access); }, &code);
    EXPECT(code == ErrorCode::kInvalidArgument && text.find("1 to 16 ranks") != std::string::npos,
           ranks, " ranks: ", text);
  };
  wrong_ranks(0);
  wrong_ranks(17);
#if defined(FC_SHIM)
  DeviceSet group({0, 1}, access);
  shim::Runtime::get().most_bytes = 4096;
  const std::string poor = error_of([&] { group.staging(1 << 20); });
  shim::Runtime::get().most_bytes = size_t{1} << 40;
  EXPECT(poor.find("cudaHostAlloc: out of memory (device 0): 2097152 bytes of pinned memory") !=
             std::string::npos,
         poor);
  cudaStream_t stream = nullptr;
  FC_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a test");
  const std::string other = error_of([&] {
    DeviceGuard guard;
    group.mark(Mark::kReady, 1, {nullptr, stream}, guard);
  });
  EXPECT(other.find("rank 1 on device 1: is its stream of another device?") != std::string::npos,
         other);
  FC_CUDA(cudaStreamDestroy(stream), "a test");
#endif
}

/// What FASTCOMM_PEER_ACCESS says, or why it cannot be read.
CASE(setting) {
  const std::string wrong = error_of(
      [] { std::printf("peer access: %s\n", environment().peer_access ? "auto" : "off"); });
  EXPECT(wrong.empty(), wrong);
#if defined(FC_SHIM)
  if (!wrong.empty()) return;
  configure(2, [](int, int) { return Link::kDirect; });
  const AccessKind kind = environment().peer_access ? AccessKind::kDirect : AccessKind::kStaged;
  PeerAccess access(probe_peers, environment().peer_access);
  EXPECT(access.between(0, 1).kind == kind, access.between(0, 1).reason);
#endif
}

/// A child of fork() gets an error, and harms nothing when it ends.
CASE(fork) {
#if defined(FC_SHIM)
  configure(2, [](int, int) { return Link::kNone; });
#endif
  PeerAccess access(probe_peers, true);
  auto group = std::make_unique<DeviceSet>(std::vector<int>(2, 0), access);
  group->staging(1);
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    for (const auto& call : {std::function<void()>([&] { access.between(0, 0); }),
                             std::function<void()>([&] { group->check(Streams(2)); })}) {
      ErrorCode code = ErrorCode::kSystem;
      error_of(call, &code);
      wrong += code != ErrorCode::kForked;
    }
    group.reset();
    _exit(wrong);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: ", status);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
