#include "coll/schedules.h"

#include <cstring>

#include "coll/fused_local.h"
#include "core/error.h"

namespace fastcomm {
namespace {

AnySchedule all_reduce(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                       Algorithm algorithm, uint64_t sequence) {
  const auto element_size = static_cast<uint32_t>(dtype_size(call.dtype));
  const AllReduceArgs args{peers,
                           layout,
                           static_cast<const char*>(call.input),
                           static_cast<char*>(call.output),
                           call.count,
                           element_size,
                           layout.block_bytes / element_size,
                           sequence};
  if (algorithm == Algorithm::kOneShot) return AllReduceOneShot{args};
  return AllReduceTwoShot{args};
}

/// Bytes of a block where one rank stages what others copy out: enough blocks to overlap the two.
uint64_t overlapping_block(uint64_t bytes, const ScratchLayout& layout) {
  constexpr uint64_t kBlocks = 8, kSmallest = 64 * 1024;
  const uint64_t wanted = round_up(ceil_div(bytes, kBlocks), kLineBytes);
  return smaller(layout.block_bytes, wanted < kSmallest ? kSmallest : wanted);
}

AnySchedule broadcast(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                      Algorithm algorithm, uint64_t sequence) {
  const BroadcastArgs args{peers,
                           layout,
                           static_cast<char*>(call.output),
                           call.bytes(),
                           overlapping_block(call.bytes(), layout),
                           call.root,
                           sequence};
  if (algorithm == Algorithm::kOneShot) return BroadcastOneShot{args};
  return BroadcastPipelined{args};
}

AnySchedule all_gather(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                       Algorithm algorithm, uint64_t sequence) {
  AllGatherArgs args{peers,
                     layout,
                     static_cast<const char*>(call.input),
                     call.bytes(),
                     overlapping_block(call.bytes(), layout),
                     sequence};
  for (int peer = 0; peer < peers.size; ++peer) {
    args.outputs[peer] = static_cast<char*>(call.outputs[peer]);
  }
  if (algorithm == Algorithm::kOneShot) return AllGatherOneShot{args};
  return AllGatherPipelined{args};
}

AnySchedule reduce_scatter(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                           Algorithm algorithm, uint64_t sequence) {
  const auto size = static_cast<uint64_t>(peers.size);
  ReduceScatterArgs args{peers,
                         layout,
                         static_cast<char*>(call.output),
                         call.bytes(),
                         layout.block_bytes / size / kLineBytes * kLineBytes,
                         static_cast<uint32_t>(dtype_size(call.dtype)),
                         sequence};
  for (int peer = 0; peer < peers.size; ++peer) {
    args.inputs[peer] = static_cast<const char*>(call.inputs[peer]);
  }
  if (algorithm == Algorithm::kOneShot) return ReduceScatterOneShot{args};
  return ReduceScatterPipelined{args};
}

}  // namespace

AnySchedule make_schedule(const Call& call, const PeerView& peers, const GroupTraits& group,
                          Algorithm algorithm, uint64_t sequence) {
  if (call.meeting) return Barrier{peers.size};
  if (algorithm == Algorithm::kNothing) return std::monostate{};
  if (algorithm == Algorithm::kStock) {
    throw Error(ErrorCode::kUnsupported,
                "this call has no native schedule: the router sends it on");
  }
  switch (call.kind) {
    case OpKind::kAllReduce:
      return all_reduce(call, peers, group.layout, algorithm, sequence);
    case OpKind::kBroadcast:
      return broadcast(call, peers, group.layout, algorithm, sequence);
    case OpKind::kAllGather:
    case OpKind::kAllGatherIntoTensor:
      return all_gather(call, peers, group.layout, algorithm, sequence);
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterTensor:
      return reduce_scatter(call, peers, group.layout, algorithm, sequence);
    case OpKind::kBarrier:
      return Barrier{peers.size};
    case OpKind::kFusedAllReduce:
    case OpKind::kFusedReduceScatter:
      call.gradients->deal(group.layout, peers.size);
      return FusedAllReduce{peers, call.gradients};
    case OpKind::kGatherShards:
      call.gradients->deal(group.layout, peers.size);
      return GatherShards{peers, call.gradients};
    default:
      throw Error(ErrorCode::kUnsupported, "no native schedule for this operation");
  }
}

ReduceFunction reduction_of(const Call& call) {
  // A meeting's dtype may be one that no kernel knows.
  return reduces(call.kind) && !call.meeting ? reduce_function(call.dtype) : nullptr;
}

void run_alone(const Call& call) {
  if (call.kind == OpKind::kGatherShards) return;
  if (takes_list(call.kind)) return reduce_alone(*call.gradients);
  const void* from = is_reduce_scatter(call.kind) ? call.inputs[0] : call.input;
  void* to = is_all_gather(call.kind) ? call.outputs[0] : call.output;
  if (reduces(call.kind)) {
    reduction_of(call)(ReduceSpan{to, nullptr, &from, 1, call.count, 1, 1, call.factor});
  } else if (is_all_gather(call.kind) && to != from && call.bytes() != 0) {
    std::memcpy(to, from, call.bytes());
  }
}

}  // namespace fastcomm
