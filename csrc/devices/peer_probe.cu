// The kernel of devices/peer_probe.h, and the two host threads that launch it: one per device, so
// that it also works if launches block (CUDA_LAUNCH_BLOCKING=1).
//
// Memory ordering. All threads write; __syncthreads; thread 0 stores its own flag with release, in
// system scope; the peer's thread 0 waits for it (kernels/bounded_wait.h); __syncthreads; all
// threads of the peer read. Boxes of round k are written again in round k + 1, after a meeting by
// which both have read them. Also compiled for the host, under the execution shim (FC_SHIM).
#include "devices/peer_probe.h"

#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#include "core/beside_captures.h"
#include "core/control.h"
#include "core/cuda_host.h"
#include "core/device_guard.h"
#include "core/hd.h"
#include "kernels/bounded_wait.h"
#include "kernels/cuda_api.h"
#include "transport/peer_view.h"

namespace fastcomm {
namespace {

#if defined(FC_SHIM)
constexpr int kProbeThreads = 4;
constexpr uint64_t kBoxWords = 1024;
#else
constexpr int kProbeThreads = 512;
constexpr uint64_t kBoxWords = 64 * 1024;
#endif
constexpr uint32_t kRounds = 6;
constexpr uint64_t kMeetNs = 1'000'000'000;  // longest wait of one device for the other
constexpr std::chrono::seconds kGiveUp{30};  // longest wait of the host for both

enum Finding : uint32_t { kNothing = 0, kWrongReads = 1, kWrongWrites = 2, kApart = 4 };

/// One side's flag, in pinned memory: one line each.
struct alignas(kLineBytes) ProbeFlag {
  uint32_t word;
};
struct alignas(kLineBytes) ProbeReport {
  uint32_t finished;  // 1: the kernel has come to its end
  uint32_t findings;
};

struct ProbeArgs {
  uint32_t side;
  uint32_t* own_box;  // read by the peer
  const uint32_t* peer_box;
  const uint32_t* own_inbox;  // written by the peer
  uint32_t* peer_inbox;
  uint32_t* own_flag;
  const uint32_t* peer_flag;
  ProbeReport* report;
};

/// Takes both values of every bit, in neighbouring rounds; each side, place and round has its own
/// pattern.
FC_DEVICE uint32_t pattern(uint32_t round, uint32_t side, uint32_t box, uint64_t i) {
  uint32_t word = static_cast<uint32_t>(i) * 2654435761u + (round / 2 * 4 + side * 2 + box) * 97u;
  word = (word ^ (word >> 15)) * 2246822519u;
  return round % 2 == 0 ? word : ~word;
}

/// True in every thread if the peer came to the same step, within the bound.
FC_DEVICE bool meet_peer(const ProbeArgs& args, uint32_t step) {
  __syncthreads();
  bool there = true;
  if (threadIdx.x == 0) {
    store_flag(args.own_flag, step);
    there = wait_for_flag(args.peer_flag, step, {kMeetNs, nullptr}, [] { return false; });
  }
  return __syncthreads_and(there);
}

FC_DEVICE void finish(const ProbeArgs& args, uint32_t findings) {
  if (threadIdx.x != 0) return;
  args.report->findings = findings;
  store_flag(&args.report->finished, 1);
}

__global__ void peer_probe_kernel(const ProbeArgs args) {
  const uint32_t peer = 1 - args.side;
  uint32_t findings = kNothing;
  uint32_t step = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint64_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) {
      args.own_box[i] = pattern(round, args.side, 0, i);
    }
    if (!meet_peer(args, ++step)) return finish(args, findings | kApart);
    bool right = true;
    for (uint64_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) {
      args.peer_inbox[i] = pattern(round, args.side, 1, i);
      right = args.peer_box[i] == pattern(round, peer, 0, i) && right;
    }
    if (!__syncthreads_and(right)) findings |= kWrongReads;
    if (!meet_peer(args, ++step)) return finish(args, findings | kApart);
    right = true;
    for (uint64_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) {
      right = args.own_inbox[i] == pattern(round, peer, 1, i) && right;
    }
    if (!__syncthreads_and(right)) findings |= kWrongWrites;
  }
  finish(args, findings);
}

/// One side's resources on its device, and the end of its thread.
struct Side {
  int device = 0;
  uint32_t* boxes = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  bool stuck = false;
  std::exception_ptr error;
};

/// Both sides' resources; not freed if a kernel may still use them.
class Probe {
 public:
  /// By way of the other constructor, so that the destructor frees the resources if this one
  /// raises.
  Probe(int first, int second) : Probe() {
    sides_[0].device = first;
    sides_[1].device = second;
    DeviceGuard guard(sides_[0].device);
    void* pinned = nullptr;
    FC_CUDA(cudaHostAlloc(&pinned, 2 * (sizeof(ProbeFlag) + sizeof(ProbeReport)),
                          cudaHostAllocPortable | cudaHostAllocMapped),
            "flags of a peer probe");
    flags_ = static_cast<ProbeFlag*>(pinned);
    reports_ = reinterpret_cast<ProbeReport*>(flags_ + 2);
    for (Side& side : sides_) {
      guard.set(side.device);
      void* boxes = nullptr;
      FC_CUDA(cudaMalloc(&boxes, 2 * kBoxWords * sizeof(uint32_t)),
              2 * kBoxWords * sizeof(uint32_t), " bytes of a peer probe");
      side.boxes = static_cast<uint32_t*>(boxes);
      FC_CUDA(cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking), "a peer probe");
      FC_CUDA(cudaEventCreateWithFlags(&side.done, cudaEventDisableTiming), "a peer probe");
      // Loads the kernel now: loading it while the other side waits would wait too.
      cudaFuncAttributes attributes;
      FC_CUDA(cudaFuncGetAttributes(&attributes, peer_probe_kernel), "a peer probe");
    }
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  ~Probe() {
    if (stuck()) return;
    for (const Side& side : sides_) {
      if (side.done != nullptr) static_cast<void>(cudaEventDestroy(side.done));
      if (side.stream != nullptr) static_cast<void>(cudaStreamDestroy(side.stream));
      if (side.boxes != nullptr) static_cast<void>(cudaFree(side.boxes));
    }
    if (flags_ != nullptr) static_cast<void>(cudaFreeHost(flags_));
  }

  /// One try: the findings of both sides.
  uint32_t run() {
    for (int s = 0; s < 2; ++s) {
      flags_[s].word = 0;
      reports_[s] = ProbeReport{0, 0};
    }
    std::thread other([this] { run_side(1); });
    run_side(0);
    other.join();
    for (Side& side : sides_) {
      if (side.error) std::rethrow_exception(side.error);
    }
    return reports_[0].findings | reports_[1].findings;
  }

  bool stuck() const { return sides_[0].stuck || sides_[1].stuck; }

 private:
  Probe() = default;

  void run_side(int s) {
    Side& side = sides_[s];
    const Side& peer = sides_[1 - s];
    try {
      const BesideCaptures beside(side.device);  // the first side's thread has one already
      ProbeArgs args;
      args.side = static_cast<uint32_t>(s);
      args.own_box = device_view(side.device, side.boxes, Touch::kWrite);
      args.own_inbox = args.own_box + kBoxWords;
      args.peer_box = device_view<const uint32_t>(side.device, peer.boxes, Touch::kRead);
      args.peer_inbox = device_view(side.device, peer.boxes + kBoxWords, Touch::kWrite);
      args.own_flag = &flags_[s].word;
      args.peer_flag = &flags_[1 - s].word;
      args.report = &reports_[s];
      FC_CUDA(FC_LAUNCH(peer_probe_kernel, dim3(1), dim3(kProbeThreads), side.stream, args),
              "a peer probe from device ", side.device);
      FC_CUDA(cudaEventRecord(side.done, side.stream), "a peer probe");
      side.stuck = !await_end(side);
    } catch (...) {
      side.error = std::current_exception();
    }
  }

  static bool await_end(const Side& side) {
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      const cudaError_t state = cudaEventQuery(side.done);
      if (state == cudaSuccess) return true;
      if (state != cudaErrorNotReady) {
        throw Error(ErrorCode::kSystem, cuda_error_text(state, "a kernel that tries peer access"));
      }
      forget_error(state);
      if (std::chrono::steady_clock::now() - begin > kGiveUp) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  Side sides_[2];
  ProbeFlag* flags_ = nullptr;
  ProbeReport* reports_ = nullptr;
};

}  // namespace

ProbeResult probe_peers(int first, int second, int tries) {
  Probe probe(first, second);
  for (int attempt = 0; attempt < tries; ++attempt) {
    const uint32_t findings = probe.run();
    if (probe.stuck()) {
      return {concat("a probe on devices ", first, " and ", second, " did not end within ",
                     kGiveUp.count(), " s")};
    }
    const uint32_t believed = FC_LEFT_OUT(Control::kBlindProbe) ? 0 : findings;
    if (believed & kWrongReads) return {"a probe read wrong bits from the other device"};
    if (believed & kWrongWrites) return {"what a probe wrote to the other device did not arrive"};
    if ((findings & kApart) == 0) return {};
  }
  return {concat("devices ", first, " and ", second, " were too busy to run a probe at once"),
          true};
}

}  // namespace fastcomm
