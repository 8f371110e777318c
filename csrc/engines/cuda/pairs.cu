// The kernels of engines/cuda/pairs.h. Also compiled for the host, under the execution shim
// (FC_SHIM).
#include "engines/cuda/pairs.h"

#include "core/control.h"
#include "core/cuda_host.h"
#include "core/error.h"
#include "engines/cuda/meeting_block.h"

namespace fastcomm {
namespace {

struct PairsArgs {
  MeetingArgs meeting;
  PairSizes sizes;
  uint64_t* most;
};

/// The header for each peer, with the sizes of the pair's two messages; the check of the peer's.
struct PairCall {
  const PairSizes& sizes;

  FC_DEVICE CallHeader to(const MeetingArgs& args, int peer) const {
    CallHeader call = args.call;
    call.where = sizes.sent[peer];
    call.form = sizes.expected[peer];
    call.balance = sizes.rounds;
    return call;
  }
  FC_DEVICE bool suits(const MeetingArgs& args, int peer, const CallHeader& theirs) const {
    return same_call(theirs, args.call) && theirs.where == sizes.expected[peer] &&
           theirs.form == sizes.sent[peer];
  }
};

__global__ void __launch_bounds__(kMeetingThreads)
    pairs_kernel(const __grid_constant__ PairsArgs args) {
  ChannelState state;
  if (!enter_channel(args.meeting, state)) return;
  const PairCall said{args.sizes};
  const ChannelState met =
      meet_once(args.meeting, state, said, /*opens=*/true, [&](const auto& meeting) {
        if (threadIdx.x != 0) return;
        uint64_t most = args.sizes.rounds;
        for (int peer = 0; peer < args.meeting.place.size; ++peer) {
          if (peer == args.meeting.place.rank) continue;
          const uint64_t rounds = meeting.said_by(peer).balance;
          if (rounds > most) most = rounds;
        }
        *args.most = most;
      });
  if (threadIdx.x == 0) leave_channel(args.meeting, met);
}

__global__ void __launch_bounds__(kMeetingThreads)
    rest_kernel(const __grid_constant__ PairsArgs args) {
  ChannelState state;
  if (!enter_channel(args.meeting, state)) return;  // then `most` may not have been written
  const uint64_t first = 2 * args.sizes.rounds, end = 2 * *args.most;
  if (first >= end) {  // no meeting: a write of the state would have no barrier before it
    if (threadIdx.x == 0) give_channel(args.meeting);
    return;
  }
  for (uint64_t met = first; met < end && state.failed == 0; ++met) {
    state = meet_once(args.meeting, state, OneCall{}, /*opens=*/met % 2 == 0, [](const auto&) {});
  }
  if (threadIdx.x == 0) leave_channel(args.meeting, state);
}

}  // namespace

void launch_opening_of_pairs(const MeetingPlace& place, const WaitBounds& bounds,
                             const CallHeader& call, const PairSizes& sizes, uint64_t* most,
                             cudaStream_t stream) {
  const PairsArgs args{meeting_args(place, bounds, call, /*opens=*/true), sizes,
                       kernel_view(most, sizeof(*most), Touch::kWrite)};
  FC_CUDA(FC_LAUNCH(pairs_kernel, dim3(1), dim3(kMeetingThreads), stream, args), "a meeting of ",
          place.size, " ranks");
}

void launch_rest_of_pairs(const MeetingPlace& place, const WaitBounds& bounds,
                          const CallHeader& call, const PairSizes& sizes, const uint64_t* most,
                          cudaStream_t stream) {
  if (FC_LEFT_OUT(Control::kLeaveEarly)) return;
  const uint64_t* const seen = kernel_view(most, sizeof(*most), Touch::kRead);
  const PairsArgs args{meeting_args(place, bounds, call, /*opens=*/true), sizes,
                       const_cast<uint64_t*>(seen)};
  FC_CUDA(FC_LAUNCH(rest_kernel, dim3(1), dim3(kMeetingThreads), stream, args), "meetings of ",
          place.size, " ranks");
}

void load_pairs_kernels() {
  cudaFuncAttributes attributes;
  FC_CUDA(cudaFuncGetAttributes(&attributes, pairs_kernel), "the kernel of meetings");
  FC_CUDA(cudaFuncGetAttributes(&attributes, rest_kernel), "the kernel of meetings");
}

}  // namespace fastcomm
