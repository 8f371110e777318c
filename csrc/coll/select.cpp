#include "coll/select.h"

#include "coll/all_to_all_v.h"
#include "core/error.h"
#include "kernels/reduce_cpu.h"

namespace fastcomm {
namespace {

bool reduces_natively(const Query& query) {
  return why_no_reduction(query.dtype, query.op) == nullptr;
}

/// The largest message of that algorithm in one rank.
uint64_t limit_of(const AlgorithmRow& row, const GroupTraits& group) {
  if (row.messages == nullptr) return UINT64_MAX;
  return group.layout.payload_bytes / static_cast<uint64_t>(row.messages(group.size));
}

}  // namespace

Algorithm select_algorithm(const GroupTraits& group, const Query& query) {
  const OperationRow& row = row_of(query.kind);
  if (!group.native) return Algorithm::kDelegated;
  if (row.reduces && !reduces_natively(query)) return Algorithm::kDelegated;
  if (group.size == 1) return Algorithm::kNothing;
  for (const AlgorithmRow& way : row.algorithms) {
    if (query.bytes <= limit_of(way, group)) return way.algorithm;
  }
  return Algorithm::kDelegated;
}

const AlgorithmRow* row_of(OpKind kind, Algorithm algorithm) {
  for (const AlgorithmRow& way : row_of(kind).algorithms) {
    if (way.algorithm == algorithm) return &way;
  }
  return nullptr;
}

Selection explain_selection(const GroupTraits& group, const Query& query) {
  const OperationRow& row = row_of(query.kind);
  Selection selection;
  selection.algorithm = select_algorithm(group, query);
  switch (selection.algorithm) {
    case Algorithm::kDelegated:
      if (!group.native) {
        selection.reason = group.why_not_native;
      } else if (row.algorithms.empty()) {
        selection.reason = "there is no such operation";
      } else {
        selection.reason =
            concat("no native kernel for this reduction of ", dtype_name(query.dtype), ": ",
                   why_no_reduction(query.dtype, query.op));
      }
      return selection;
    case Algorithm::kNothing:
      selection.reason = "the group has one rank";
      return selection;
    case Algorithm::kFlags:
      selection.reason = concat("no data; ", group.transport);
      return selection;
    case Algorithm::kByTable:
      selection.reason = concat("in one step where no rank sends more than ",
                                group.layout.payload_bytes, " bytes, else in blocks of at most ",
                                group.layout.block_bytes, "; ", group.transport);
      return selection;
    case Algorithm::kRing:
      selection.reason = concat("at most ", kEagerBytes,
                                " bytes travel with their announcement, more in pieces of ",
                                ring_slot_bytes(group.size), "; ", group.transport);
      return selection;
    default:
      break;
  }
  if (row.takes_list) {
    selection.reason =
        concat("a list, in blocks of at most ", group.layout.block_bytes, "; ", group.transport);
    return selection;
  }
  const uint64_t limit = limit_of(row.algorithms.front(), group);
  if (selection.algorithm == Algorithm::kOneShot) {
    selection.reason = concat(query.bytes, " bytes are at most the one-shot limit of ", limit, "; ",
                              group.transport);
    return selection;
  }
  const bool in_place = row_of(query.kind, selection.algorithm)->in_place != nullptr;
  selection.reason = concat(
      query.bytes, " bytes are more than the one-shot limit of ", limit, "; ",
      in_place ? "in place where every rank's tensor lies in shared memory (fastcomm.empty), else "
               : "",
      "in blocks of at most ", group.layout.block_bytes, "; ", group.transport);
  return selection;
}

ScratchLayout scratch_layout(uint64_t payload_bytes, uint64_t block_bytes, int size) {
  constexpr uint64_t kLine = 64;
  ScratchLayout layout{};
  layout.payload_bytes = round_up(payload_bytes, kLine);
  layout.block_bytes = round_up(block_bytes, kLine);
  layout.table_bytes = round_up(MessageTable::bytes_for(size), kLine);
  layout.result_bytes = round_up(ceil_div(layout.block_bytes, static_cast<uint64_t>(size)), kLine);
  return layout;
}

}  // namespace fastcomm
