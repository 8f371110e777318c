// The kernels of engines/cuda/meeting.h. Also compiled for the host, under the execution shim (FC_SHIM).
#include "engines/cuda/meeting.h"

#include <algorithm>

#include "core/control.h"
#include "core/cuda_host.h"
#include "core/touches.h"
#include "kernels/bounded_wait.h"

namespace fastcomm {
namespace {

#if defined(FC_SHIM)
constexpr int kMeetingThreads = 2;  // so that a thread has several peers
constexpr int kSpoilThreads = 2;
constexpr int kSpoilBlocks = 2;
#else
constexpr int kMeetingThreads = 32;
constexpr int kSpoilThreads = 256;
constexpr int kSpoilBlocks = 64;
#endif
constexpr int kSpoiledTable = 64;

struct MeetingArgs {
  MeetingPlace place;
  WaitBounds bounds;
  CallHeader call;
  bool opens;
};

/// Lines are indexed at run time, so they stay in parameter space: a copy would lie in local memory.
class Meeting {
 public:
  FC_DEVICE explicit Meeting(const MeetingArgs& args, const ChannelState& state)
      : args_(args), target_(state.base + 1), operation_(state.operations) {}

  FC_DEVICE void say() const {
    each_peer([&](int peer) {
      MeetingLine* const there = args_.place.lines[peer] + args_.place.rank;
      if (args_.opens) {
        FC_THREAD_TOUCHES(&there->call, sizeof(there->call), true);
        there->call = args_.call;
      }
      // Release: behind the call, and behind all that the stream did before.
      store_flag(&there->flag, target_);
      return true;
    });
  }

  /// False: this thread has not heard of one of its peers, or something else.
  FC_DEVICE bool hear() const {
    return each_peer([&](int peer) {
      MeetingLine* const line = own_lines() + peer;
      // Acquire: what the peer did before is known from here on.
      return wait_for_flag(&line->flag, target_, args_.bounds,
                           [&] { return load_relaxed(&line->has_failed) != 0; }) &&
             !differs(line);
    });
  }

  /// By one thread, behind a barrier.
  FC_DEVICE void give_up() const {
    MeetingRecord& record = *args_.place.record;
    WaitFailure why = is_aborted(args_.bounds) ? WaitFailure::kAborted : WaitFailure::kNone;
    uint64_t missing = 0;
    int blamed = -1;
    uint32_t seen = target_;
    for (int peer = args_.place.size - 1; peer >= 0; --peer) {
      if (peer == args_.place.rank) continue;
      MeetingLine* const line = own_lines() + peer;
      // Acquire, and first: who has given up after he came is seen to have come.
      const bool gave_up = load_flag(&line->has_failed) != 0;
      const uint32_t flag = load_flag(&line->flag);
      const bool came = reached(flag, target_);
      if (!came) missing |= uint64_t{1} << peer;
      if (why == WaitFailure::kAborted) continue;
      WaitFailure of_peer = WaitFailure::kNone;
      if (gave_up) {
        of_peer = WaitFailure::kPeerFailed;
      } else if (!came) {
        of_peer = WaitFailure::kTimeout;
      }
      if (came && differs(line)) of_peer = WaitFailure::kMismatch;
      // What a peer has called comes before that it gave up, and that before one that is late.
      if (of_peer == WaitFailure::kNone || rank_of(of_peer) < rank_of(why)) continue;
      why = of_peer;
      blamed = peer;
      seen = flag;
    }
    if (why == WaitFailure::kMismatch) record.other = own_lines()[blamed].call;
    record.own = args_.call;
    record.wait.missing = missing;
    record.wait.operation = operation_;
    record.wait.step = args_.opens ? 0 : 1;
    record.wait.peer = blamed;
    record.wait.expected = target_;
    record.wait.seen = seen;
    // A peer that came late, after all: the bound ran out nevertheless.
    if (why == WaitFailure::kNone) why = WaitFailure::kTimeout;
    store_flag(&record.wait.failure, static_cast<uint32_t>(why));
    for (int peer = 0; peer < args_.place.size; ++peer) {
      if (peer == args_.place.rank) continue;
      store_flag(&args_.place.lines[peer][args_.place.rank].has_failed, 1);
    }
  }

 private:
  FC_DEVICE MeetingLine* own_lines() const { return args_.place.lines[args_.place.rank]; }

  FC_DEVICE static int rank_of(WaitFailure why) {
    return why == WaitFailure::kMismatch     ? 3
           : why == WaitFailure::kPeerFailed ? 2
           : why == WaitFailure::kTimeout    ? 1
                                             : 0;
  }

  /// All of this thread's peers; false if one of them was.
  template <class Body>
  FC_DEVICE bool each_peer(const Body& body) const {
    bool good = true;
    for (int peer = static_cast<int>(threadIdx.x); peer < args_.place.size; peer += blockDim.x) {
      if (peer != args_.place.rank) good = body(peer) && good;
    }
    return good;
  }

  FC_DEVICE bool differs(MeetingLine* line) const {
    if (!args_.opens || FC_LEFT_OUT(Control::kBlindMeeting)) return false;
    FC_THREAD_TOUCHES(&line->call, sizeof(line->call), false);
    return !same_call(line->call, args_.call);
  }

  const MeetingArgs& args_;
  const uint32_t target_;
  const uint32_t operation_;
};

__global__ void __launch_bounds__(kMeetingThreads)
    meeting_kernel(const __grid_constant__ MeetingArgs args) {
  const ChannelState state = *args.place.state;
  if (state.failed != 0) return;  // all threads alike: nobody writes it before the barrier
  const Meeting meeting(args, state);
  meeting.say();
  const bool good = __syncthreads_and(meeting.hear());
  if (threadIdx.x != 0) return;
  if (!good) meeting.give_up();
  *args.place.state =
      ChannelState{state.base + 1, state.operations + (args.opens ? 0u : 1u), good ? 0u : 1u};
}

struct SpoilArgs {
  const ChannelState* state;
  char* memory[kSpoiledTable];
  uint64_t count[kSpoiledTable];
  uint64_t bits;  // of a NaN
  uint32_t width;
  int many;
};

template <class Word>
FC_DEVICE void fill(char* memory, uint64_t count, Word bits) {
  const uint64_t first = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (uint64_t i = first; i < count; i += uint64_t{gridDim.x} * blockDim.x) {
    reinterpret_cast<Word*>(memory)[i] = bits;
  }
}

__global__ void __launch_bounds__(kSpoilThreads)
    spoil_kernel(const __grid_constant__ SpoilArgs args) {
  if (args.state->failed == 0) return;
  for (int i = 0; i < args.many; ++i) {
    if (args.width == 2) fill(args.memory[i], args.count[i], static_cast<uint16_t>(args.bits));
    if (args.width == 4) fill(args.memory[i], args.count[i], static_cast<uint32_t>(args.bits));
    if (args.width == 8) fill(args.memory[i], args.count[i], args.bits);
  }
}

/// 0: the type has no NaN.
uint64_t nan_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x7e00;
    case DType::kBFloat16:
      return 0x7fc0;
    case DType::kFloat32:
      return 0x7fc00000;
    case DType::kFloat64:
      return 0x7ff8000000000000;
    default:
      return 0;
  }
}

void launch(const MeetingPlace& place, const WaitBounds& bounds, const CallHeader& call, bool opens,
            cudaStream_t stream) {
  if (FC_LEFT_OUT(opens ? Control::kSkipOpening : Control::kSkipClosing)) return;
  MeetingArgs args{place, bounds, call, opens};
  args.place.state = kernel_view(place.state, sizeof(ChannelState), Touch::kWrite);
  FC_CUDA(FC_LAUNCH(meeting_kernel, dim3(1), dim3(kMeetingThreads), stream, args), "a meeting of ",
          place.size, " ranks");
}

}  // namespace

void launch_opening(const MeetingPlace& place, const WaitBounds& bounds, const CallHeader& call,
                    cudaStream_t stream) {
  launch(place, bounds, call, /*opens=*/true, stream);
}

void launch_closing(const MeetingPlace& place, const WaitBounds& bounds, const CallHeader& call,
                    cudaStream_t stream) {
  launch(place, bounds, call, /*opens=*/false, stream);
}

void launch_spoil(const MeetingPlace& place, DType dtype, const std::vector<DeviceResult>& results,
                  cudaStream_t stream) {
  const uint64_t bits = nan_of(dtype);
  if (bits == 0) return;
  for (size_t done = 0; done < results.size(); done += kSpoiledTable) {
    SpoilArgs args;  // not cleared: the kernel reads `many` entries
    args.state = kernel_view(place.state, sizeof(ChannelState), Touch::kRead);
    args.bits = bits;
    args.width = static_cast<uint32_t>(dtype_size(dtype));
    args.many = static_cast<int>(std::min<size_t>(kSpoiledTable, results.size() - done));
    for (int i = 0; i < args.many; ++i) {
      const DeviceResult& each = results[done + i];
      args.memory[i] =
          kernel_view(static_cast<char*>(each.memory), each.count * args.width, Touch::kWrite);
      args.count[i] = each.count;
    }
    FC_CUDA(FC_LAUNCH(spoil_kernel, dim3(kSpoilBlocks), dim3(kSpoilThreads), stream, args),
            "the results of ", results.size(), " tensors");
  }
}

void load_meeting_kernels() {
  cudaFuncAttributes attributes;
  FC_CUDA(cudaFuncGetAttributes(&attributes, meeting_kernel), "the kernel of meetings");
  FC_CUDA(cudaFuncGetAttributes(&attributes, spoil_kernel), "the kernel of spoiled results");
}

}  // namespace fastcomm
