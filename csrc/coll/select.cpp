#include "coll/select.h"

#include "core/error.h"

namespace fastcomm {
namespace {

bool reduces_natively(const Query& query) {
  if (query.dtype == DType::kOther) return false;
  if (query.op == ReduceOp::kAvg) return query.dtype != DType::kBool;
  if (query.op == ReduceOp::kPremulSum) return is_floating(query.dtype);
  return query.op == ReduceOp::kSum;
}

/// A one-shot all_reduce reads the message of every peer, a pipelined one reads about two messages
/// whatever the number of ranks. A payload holds what a reduce_scatter sends to all ranks.
uint64_t one_shot_limit(const GroupTraits& group, OpKind kind) {
  const int parts = kind == OpKind::kAllReduce ? group.size - 1
                    : is_reduce_scatter(kind)  ? group.size
                                               : 1;
  return group.layout.payload_bytes / static_cast<uint64_t>(parts);
}

}  // namespace

const char* algorithm_name(Algorithm algorithm) {
  constexpr const char* kNames[] = {"stock", "nothing", "one-shot", "pipelined", "flags"};
  return kNames[static_cast<int>(algorithm)];
}

Algorithm select_algorithm(const GroupTraits& group, const Query& query) {
  if (!group.native || !has_schedule(query.kind)) return Algorithm::kStock;
  if (reduces(query.kind) && !reduces_natively(query)) return Algorithm::kStock;
  if (group.size == 1) return Algorithm::kNothing;
  if (query.kind == OpKind::kBarrier) return Algorithm::kFlags;
  if (takes_list(query.kind)) return Algorithm::kPipelined;
  return query.bytes <= one_shot_limit(group, query.kind) ? Algorithm::kOneShot
                                                          : Algorithm::kPipelined;
}

Selection explain_selection(const GroupTraits& group, const Query& query) {
  Selection selection;
  selection.algorithm = select_algorithm(group, query);
  switch (selection.algorithm) {
    case Algorithm::kStock:
      if (!group.native) {
        selection.reason = group.why_stock;
      } else if (!has_schedule(query.kind)) {
        selection.reason = "this operation has no native schedule";
      } else {
        selection.reason =
            concat("no native kernel for this reduction of ", dtype_name(query.dtype));
      }
      break;
    case Algorithm::kNothing:
      selection.reason = "the group has one rank";
      break;
    case Algorithm::kFlags:
      selection.reason = concat("no data; ", group.transport);
      break;
    case Algorithm::kOneShot:
      selection.reason = concat(query.bytes, " bytes are at most the one-shot limit of ",
                                one_shot_limit(group, query.kind), "; ", group.transport);
      break;
    case Algorithm::kPipelined:
      if (takes_list(query.kind)) {
        selection.reason = concat("a list, in blocks of at most ", group.layout.block_bytes, "; ",
                                  group.transport);
        break;
      }
      selection.reason = concat(
          query.bytes, " bytes are more than the one-shot limit of ",
          one_shot_limit(group, query.kind), "; ",
          query.kind == OpKind::kAllReduce
              ? "in place where every rank's tensor lies in shared memory (fastcomm.empty), else "
              : "",
          "in blocks of at most ", group.layout.block_bytes, "; ", group.transport);
      break;
  }
  return selection;
}

ScratchLayout scratch_layout(uint64_t payload_bytes, uint64_t block_bytes, int size) {
  constexpr uint64_t kLine = 64;
  ScratchLayout layout{};
  layout.payload_bytes = round_up(payload_bytes, kLine);
  layout.block_bytes = round_up(block_bytes, kLine);
  layout.result_bytes = round_up(ceil_div(layout.block_bytes, static_cast<uint64_t>(size)), kLine);
  return layout;
}

}  // namespace fastcomm
