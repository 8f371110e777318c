// The kernels of engines/cuda/meeting.h. Also compiled for the host, under the execution shim
// (FC_SHIM).
#include "engines/cuda/meeting.h"

#include <algorithm>

#include "core/control.h"
#include "core/cuda_host.h"
#include "core/error.h"
#include "engines/cuda/ends.h"
#include "engines/cuda/meeting_block.h"

namespace fastcomm {
namespace {

#if defined(FC_SHIM)
constexpr int kSpoilThreads = 2;
constexpr int kSpoilBlocks = 2;
#else
constexpr int kSpoilThreads = 256;
constexpr int kSpoilBlocks = 64;
#endif
constexpr int kFewSpoiled = 64;  // results that travel in smaller blocks of parameters
constexpr int kManySpoiled = 1024;

/// Called by all threads; `behind` is called if all have met and called the same.
template <class Behind>
FC_DEVICE void meet(const MeetingArgs& args, const Behind& behind) {
  ChannelState state;
  if (!enter_channel(args, state)) return;
  const ChannelState met = meet_once(args, state, OneCall{}, args.opens, behind);
  if (threadIdx.x == 0) leave_channel(args, met);
}

__global__ void __launch_bounds__(kMeetingThreads)
    meeting_kernel(const __grid_constant__ MeetingArgs args) {
  meet(args, [](const auto&) {});
}

struct FindingArgs {
  MeetingArgs meeting;
  EndsPlace place;
  int count;
  PeerEnd ends[kMostEnds];
};

__global__ void __launch_bounds__(kMeetingThreads)
    finding_kernel(const __grid_constant__ FindingArgs args) {
  meet(args.meeting, [&](const auto& meeting) {
    for (int i = static_cast<int>(threadIdx.x); i < args.count; i += static_cast<int>(blockDim.x)) {
      args.place.found[i] = meeting.find(args.ends[i], args.place.segments);
    }
  });
}

template <int kCapacity>
struct SpoilArgs {
  const ChannelState* state;
  char* memory[kCapacity];
  uint64_t count[kCapacity];
  uint64_t bits;  // of a NaN
  uint32_t width;
  int many;
};

template <int kCapacity>
__global__ void __launch_bounds__(kSpoilThreads)
    spoil_kernel(const __grid_constant__ SpoilArgs<kCapacity> args) {
  if (args.state->failed == 0) return;
  for (int i = 0; i < args.many; ++i) {
    spoil(args.memory[i], args.count[i], args.width, args.bits);
  }
}

void launch(const MeetingPlace& place, const WaitBounds& bounds, const CallHeader& call, bool opens,
            cudaStream_t stream) {
  if (FC_LEFT_OUT(opens ? Control::kSkipOpening : Control::kSkipClosing)) return;
  const MeetingArgs args = meeting_args(place, bounds, call, opens);
  FC_CUDA(FC_LAUNCH(meeting_kernel, dim3(1), dim3(kMeetingThreads), stream, args), "a meeting of ",
          place.size, " ranks");
}

/// Bits and width of a NaN.
struct Nan {
  uint64_t bits;
  uint32_t width;
};

template <int kCapacity>
void launch_spoil_of(const MeetingPlace& place, Nan nan, const DeviceResult* results, int count,
                     cudaStream_t stream) {
  SpoilArgs<kCapacity> args;  // not cleared: the kernel reads `many` entries
  args.state = kernel_view(place.state, sizeof(ChannelState), Touch::kRead);
  args.bits = nan.bits;
  args.width = nan.width;
  args.many = count;
  for (int i = 0; i < count; ++i) {
    // It writes only after a failure, when a peer's slice may arrive too (engines/cuda/ends.h).
    args.memory[i] = kernel_view(static_cast<char*>(results[i].memory),
                                 results[i].count * nan.width, Touch::kSpoil);
    args.count[i] = results[i].count;
  }
  FC_CUDA(FC_LAUNCH(spoil_kernel<kCapacity>, dim3(kSpoilBlocks), dim3(kSpoilThreads), stream, args),
          "the results of ", count, " tensors");
}

void launch_spoil_of_all(const MeetingPlace& place, Nan nan,
                         const std::vector<DeviceResult>& results, cudaStream_t stream) {
  for (size_t done = 0; done < results.size(); done += kManySpoiled) {
    const int count = static_cast<int>(std::min<size_t>(kManySpoiled, results.size() - done));
    const auto launch =
        count <= kFewSpoiled ? launch_spoil_of<kFewSpoiled> : launch_spoil_of<kManySpoiled>;
    launch(place, nan, results.data() + done, count, stream);
  }
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

void launch_finding(const MeetingPlace& place, const EndsPlace& ends_place,
                    const std::vector<PeerEnd>& ends, const WaitBounds& bounds,
                    const CallHeader& call, cudaStream_t stream) {
  const int count = static_cast<int>(ends.size());
  FC_CHECK(count <= kMostEnds, count, " ends of a kernel");
  FindingArgs args;  // not cleared: the kernel reads `count` entries
  args.meeting = meeting_args(place, bounds, call, /*opens=*/true);
  const uint64_t entries = static_cast<uint64_t>(ends_place.count) * place.size;
  args.place.segments = kernel_view(ends_place.segments, entries * sizeof(char*), Touch::kRead);
  args.place.found =
      kernel_view(ends_place.found, count * sizeof(*ends_place.found), Touch::kWrite);
  args.count = count;
  std::copy_n(ends.data(), count, args.ends);
  FC_CUDA(FC_LAUNCH(finding_kernel, dim3(1), dim3(kMeetingThreads), stream, args), "a meeting of ",
          place.size, " ranks");
}

void launch_spoil(const MeetingPlace& place, DType dtype, const std::vector<DeviceResult>& results,
                  cudaStream_t stream) {
  const uint64_t bits = nan_of(dtype);
  if (bits == 0) return;
  launch_spoil_of_all(place, {bits, static_cast<uint32_t>(dtype_size(dtype))}, results, stream);
}

void launch_spoil_of_halves(const MeetingPlace& place, const std::vector<DeviceResult>& results,
                            cudaStream_t stream) {
  launch_spoil_of_all(place, {0xffff, 2}, results, stream);
}

void load_meeting_kernels() {
  cudaFuncAttributes attributes;
  FC_CUDA(cudaFuncGetAttributes(&attributes, meeting_kernel), "the kernel of meetings");
  FC_CUDA(cudaFuncGetAttributes(&attributes, finding_kernel), "the kernel of meetings");
  FC_CUDA(cudaFuncGetAttributes(&attributes, spoil_kernel<kFewSpoiled>),
          "the kernel of spoiled results");
  FC_CUDA(cudaFuncGetAttributes(&attributes, spoil_kernel<kManySpoiled>),
          "the kernel of spoiled results");
}

}  // namespace fastcomm
