#include "coll/operations.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "coll/fused_local.h"
#include "core/error.h"

namespace fastcomm {
namespace {

template <class Schedule>
AnySchedule all_reduce(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                       uint64_t sequence) {
  const auto element_size = static_cast<uint32_t>(dtype_size(call.dtype));
  return Schedule{AllReduceArgs{peers, layout, static_cast<const char*>(call.input),
                                static_cast<char*>(call.output), call.count, element_size,
                                layout.block_bytes / element_size, sequence, call.root, call.tail}};
}

template <class Schedule>
AnySchedule broadcast(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                      uint64_t sequence) {
  return Schedule{BroadcastArgs{peers, layout, static_cast<char*>(call.output), call.bytes(),
                                overlapping_block(call.bytes(), layout), call.root, sequence}};
}

template <class Schedule>
AnySchedule all_gather(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                       uint64_t sequence) {
  AllGatherArgs args{peers,
                     layout,
                     static_cast<const char*>(call.input),
                     call.bytes(),
                     overlapping_block(call.bytes(), layout),
                     sequence};
  for (int peer = 0; peer < peers.size; ++peer) {
    args.outputs[peer] = static_cast<char*>(call.outputs[peer]);
  }
  return Schedule{args};
}

template <class Schedule>
AnySchedule reduce_scatter(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                           uint64_t sequence) {
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
  return Schedule{args};
}

AnySchedule all_to_all_v(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                         uint64_t sequence) {
  return AllToAllV{peers, layout, sequence, call.messages};
}

AnySchedule barrier(const Call&, const PeerView& peers, const ScratchLayout&, uint64_t) {
  return Barrier{peers.size};
}

template <class Schedule>
AnySchedule over_list(const Call& call, const PeerView& peers, const ScratchLayout& layout,
                      uint64_t) {
  call.gradients->deal(layout, peers.size);
  return Schedule{peers, call.gradients};
}

// Values of AlgorithmRow::messages.

int one_message(int) { return 1; }
/// A payload holds one message. But a one-shot all_reduce reads the message of every peer, and a
/// pipelined one about two messages for any number of ranks: so the limit falls with their number.
int those_of_peers(int size) { return size - 1; }
/// A payload holds a part for each rank.
int those_of_all(int size) { return size; }

// Values of AlgorithmRow::copied_out.

uint64_t to_all_but_one(const Call& call, int size) {
  return static_cast<uint64_t>(size - 1) * call.bytes();
}
uint64_t parts_to_all(const Call& call, int size) {
  return static_cast<uint64_t>(size) * static_cast<uint64_t>(size) * call.bytes();
}
uint64_t list_to_all_but_one(const Call& call, int size) {
  uint64_t bytes = 0;
  for (const Gradient& tensor : call.gradients->tensors())
    bytes += tensor.count * dtype_size(tensor.dtype);
  return static_cast<uint64_t>(size - 1) * bytes;
}
/// The bytes that this rank gets, times the ranks; in a gather, only the root gets something.
uint64_t messages_to_all(const Call& call, int size) {
  uint64_t bytes = 0;
  for (const auto& expected : call.messages->receives) bytes += expected.bytes;
  return call.kind == OpKind::kGather ? bytes : static_cast<uint64_t>(size) * bytes;
}

void reduce_from_to(const Call& call, const void* from, void* to) {
  reduction_of(call)(ReduceSpan{to, nullptr, &from, 1, call.count, 1, 1, call.factor});
}

void all_reduce_alone(const Call& call) { reduce_from_to(call, call.input, call.output); }
void reduce_scatter_alone(const Call& call) { reduce_from_to(call, call.inputs[0], call.output); }
void fused_alone(const Call& call) { reduce_alone(*call.gradients); }

void all_gather_alone(const Call& call) {
  if (call.outputs[0] == call.input || call.bytes() == 0) return;
  std::memcpy(call.outputs[0], call.input, call.bytes());
}

void all_to_all_v_alone(const Call& call) {
  const auto& sent = call.messages->sends[0];
  auto& expected = call.messages->receives[0];
  if (call.messages->place) expected = {call.messages->place(0, sent.bytes), sent.bytes};
  if (expected.data != sent.data && sent.bytes != 0) {
    std::memcpy(expected.data, sent.data, sent.bytes);
  }
}

using Table = std::array<OperationRow, kNumOpKinds>;

Table make_table() {
  constexpr auto kOneShot = Algorithm::kOneShot, kPipelined = Algorithm::kPipelined;
  const std::vector<AlgorithmRow> reduces{
      {kOneShot, those_of_peers, all_reduce<AllReduceOneShot>},
      {kPipelined, nullptr, all_reduce<AllReduceTwoShot>, nullptr, to_all_but_one}};
  const std::vector<AlgorithmRow> gathers{
      {kOneShot, one_message, all_gather<AllGatherOneShot>},
      {kPipelined, nullptr, all_gather<AllGatherPipelined>, nullptr, parts_to_all}};
  const std::vector<AlgorithmRow> scatters{
      {kOneShot, those_of_all, reduce_scatter<ReduceScatterOneShot>},
      {kPipelined, nullptr, reduce_scatter<ReduceScatterPipelined>}};
  const std::vector<AlgorithmRow> moves{
      {Algorithm::kByTable, nullptr, all_to_all_v, nullptr, messages_to_all}};
  std::vector<OperationRow> rows;
  const auto add = [&rows](OpKind kind, std::vector<AlgorithmRow> algorithms = {},
                           void (*alone)(const Call&) = nullptr) -> OperationRow& {
    return rows.emplace_back(OperationRow{kind, std::move(algorithms), alone});
  };
  // Reductions of one message or part, in one type.
  const auto add_reduction = [&](OpKind kind, const std::vector<AlgorithmRow>& algorithms,
                                 void (*alone)(const Call&)) -> OperationRow& {
    OperationRow& row = add(kind, algorithms, alone);
    row.reduces = true;
    return row;
  };
  // Calls that the header does not describe in full.
  const auto detailed = [](OperationRow& row) -> OperationRow& {
    row.has_detail = true;
    return row;
  };
  const auto add_list = [&](OpKind kind, AlgorithmRow algorithm,
                            void (*alone)(const Call&) = nullptr) -> OperationRow& {
    OperationRow& row = detailed(add(kind, {algorithm}, alone));
    row.takes_list = true;
    return row;
  };
  using Work = PeerWay::Work;
  add(OpKind::kNone);
  std::vector<AlgorithmRow> in_place = reduces;
  in_place.front().in_place = &kShortMessageInPlace;
  in_place.back().in_place = &kMessageInPlace;
  OperationRow& sum_row = add_reduction(OpKind::kAllReduce, in_place, all_reduce_alone);
  sum_row.peers = {Work::kReduceSlices};
  sum_row.may_be_short = true;
  detailed(add_reduction(OpKind::kAllReduceAddRmsNorm, in_place, all_reduce_alone));
  add(OpKind::kBroadcast,
      {{kOneShot, one_message, broadcast<BroadcastOneShot>},
       {kPipelined, nullptr, broadcast<BroadcastPipelined>, nullptr, to_all_but_one}})
      .peers = {Work::kPull, false, /*from_root=*/true};
  add(OpKind::kAllGather, gathers, all_gather_alone).peers = {Work::kPull};
  OperationRow& barrier_row = add(OpKind::kBarrier, {{Algorithm::kFlags, nullptr, barrier}});
  barrier_row.has_data = false;
  barrier_row.may_be_short = true;
  barrier_row.peers = {Work::kMeet};
  add(OpKind::kOther);
  add_reduction(OpKind::kReduce, reduces, all_reduce_alone).peers = {Work::kReduceSlices, false,
                                                                     false, /*to_root=*/true};
  add(OpKind::kAllGatherIntoTensor, gathers, all_gather_alone).peers = {Work::kPull};
  add(OpKind::kGather, moves, all_to_all_v_alone).peers = {Work::kPull, false, false,
                                                           /*to_root=*/true};
  add(OpKind::kScatter, moves, all_to_all_v_alone).peers = {Work::kPull, /*in_parts=*/true,
                                                            /*from_root=*/true};
  add_reduction(OpKind::kReduceScatter, scatters, reduce_scatter_alone).peers = {Work::kReduceParts,
                                                                                 /*in_parts=*/true};
  add_reduction(OpKind::kReduceScatterTensor, scatters, reduce_scatter_alone).peers = {
      Work::kReduceParts, /*in_parts=*/true};
  // Only the sender and the receiver of a message know its size, on devices too.
  const auto add_pairs = [&](OpKind kind) {
    OperationRow& row = detailed(add(kind, moves, all_to_all_v_alone));
    row.counted = false;
    row.peers = {Work::kPairs};
  };
  add_pairs(OpKind::kAllToAll);
  add_pairs(OpKind::kAllToAllSingle);
  detailed(add_reduction(OpKind::kAllReduceCoalesced, reduces, all_reduce_alone)).peers = {
      Work::kReduceSlices};
  detailed(add(OpKind::kAllGatherCoalesced, gathers, all_gather_alone)).peers = {Work::kPull};
  detailed(add(OpKind::kAllGatherIntoTensorCoalesced, gathers, all_gather_alone)).peers = {
      Work::kPull};
  detailed(add_reduction(OpKind::kReduceScatterTensorCoalesced, scatters, reduce_scatter_alone))
      .peers = {Work::kReduceParts, /*in_parts=*/true};
  add_list(OpKind::kFusedAllReduce,
           {kPipelined, nullptr, over_list<FusedAllReduce>, &kListInPlace, list_to_all_but_one},
           fused_alone)
      .peers = {Work::kReduceSlices};
  add_list(OpKind::kFusedReduceScatter, {kPipelined, nullptr, over_list<FusedAllReduce>},
           fused_alone)
      .peers = {Work::kReduceSlices};
  add_list(OpKind::kGatherShards,
           {kPipelined, nullptr, over_list<GatherShards>, nullptr, list_to_all_but_one})
      .peers = {Work::kPull, false, false, false, /*of_shards=*/true};
  add_pairs(OpKind::kAllGatherUneven);
  detailed(add_reduction(OpKind::kReduceScatterUneven, reduces, all_reduce_alone));
  detailed(add(OpKind::kAllReduceSparse, moves, all_to_all_v_alone)).counted = false;

  const std::pair<HostWay, std::vector<OpKind>> composed[] = {
      {HostWay::kSum,
       {OpKind::kAllReduce, OpKind::kAllReduceCoalesced, OpKind::kReduceScatterUneven,
        OpKind::kAllReduceAddRmsNorm}},
      {HostWay::kSumToRoot, {OpKind::kReduce}},
      {HostWay::kSumParts,
       {OpKind::kReduceScatter, OpKind::kReduceScatterTensor,
        OpKind::kReduceScatterTensorCoalesced}},
      {HostWay::kSumLists, {OpKind::kFusedAllReduce, OpKind::kFusedReduceScatter}},
      {HostWay::kGather,
       {OpKind::kAllGather, OpKind::kAllGatherIntoTensor, OpKind::kAllGatherCoalesced,
        OpKind::kAllGatherIntoTensorCoalesced}},
      {HostWay::kGatherUneven, {OpKind::kAllGatherUneven}},
      {HostWay::kGatherShards, {OpKind::kGatherShards}},
      {HostWay::kSpread, {OpKind::kBroadcast}},
      {HostWay::kExchange,
       {OpKind::kGather, OpKind::kScatter, OpKind::kAllToAll, OpKind::kAllToAllSingle,
        OpKind::kAllReduceSparse}},
      {HostWay::kMeet, {OpKind::kBarrier}}};
  for (const auto& [way, kinds] : composed) {
    for (OperationRow& row : rows) {
      if (std::find(kinds.begin(), kinds.end(), row.kind) != kinds.end()) row.hosts = way;
    }
  }

  // Rings serve these, without a schedule (engines/cpu/point_to_point.h).
  for (const OpKind kind : {OpKind::kSend, OpKind::kRecv}) {
    OperationRow& row = add(kind, {{Algorithm::kRing, nullptr, nullptr}});
    row.counted = false;
    row.hosts = HostWay::kMessage;
  }

  Table table;
  for (OperationRow& row : rows) {
    row.title =
        concat("fastcomm:", row.kind == OpKind::kAllToAllSingle       ? "all_to_all"
                            : row.kind == OpKind::kAllReduceCoalesced ? "all_reduce"
                                                                      : op_kind_name(row.kind));
    table.at(static_cast<size_t>(row.kind)) = row;
  }
  return table;
}

}  // namespace

const OperationRow& row_of(OpKind kind) {
  static const Table& table = *new Table(make_table());  // threads may outlive static objects
  // A kind may have been read from another process's memory.
  return table[static_cast<size_t>(kind < static_cast<OpKind>(kNumOpKinds) ? kind
                                                                           : OpKind::kOther)];
}

ReduceFunction reduction_of(const Call& call) {
  return row_of(call.kind).reduces ? reduce_function(call.dtype, call.op) : nullptr;
}

}  // namespace fastcomm
