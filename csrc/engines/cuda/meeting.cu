// The kernels of engines/cuda/meeting.h. Also compiled for the host, under the execution shim (FC_SHIM).
#include "engines/cuda/meeting.h"

#include <algorithm>

#include "core/control.h"
#include "core/cuda_host.h"
#include "engines/cuda/meeting_block.h"

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

__global__ void __launch_bounds__(kMeetingThreads)
    meeting_kernel(const __grid_constant__ MeetingArgs args) {
  const ChannelState state = *args.place.state;
  if (state.failed != 0) return;  // all threads alike: nobody writes it before the barrier
  const Meeting meeting(args, state);
  meeting.say();
  const bool good = __syncthreads_and(meeting.hear());
  if (threadIdx.x != 0) return;
  if (!good) meeting.give_up();
  *args.place.state = ChannelState{state.base + 1, state.operations + (args.opens ? 0u : 1u),
                                   good ? 0u : 1u, state.shorts};
}

struct SpoilArgs {
  const ChannelState* state;
  char* memory[kSpoiledTable];
  uint64_t count[kSpoiledTable];
  uint64_t bits;  // of a NaN
  uint32_t width;
  int many;
};

__global__ void __launch_bounds__(kSpoilThreads)
    spoil_kernel(const __grid_constant__ SpoilArgs args) {
  if (args.state->failed == 0) return;
  for (int i = 0; i < args.many; ++i) {
    spoil(args.memory[i], args.count[i], args.width, args.bits);
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
