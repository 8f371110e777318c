#include "coll/select.h"

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

/// Which tensors are not staged, or nothing.
std::string in_place_text(const AlgorithmRow* row, const Query& query) {
  if (row == nullptr || !row->may_be_in_place(query.bytes)) return "";
  return "in place where every rank's tensor lies in shared memory (fastcomm.empty)";
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
  const std::string in_place = in_place_text(row_of(query.kind, selection.algorithm), query);
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
  const std::string limit =
      concat("the one-shot limit of ", limit_of(row.algorithms.front(), group), " (",
             chosen_by_text(group.payload_by, "FASTCOMM_ONE_SHOT_BYTES"), "); ");
  const bool one_shot = selection.algorithm == Algorithm::kOneShot;
  selection.reason = concat(query.bytes, one_shot ? " bytes are at most " : " bytes are more than ",
                            limit, in_place);
  if (!in_place.empty()) selection.reason += one_shot ? "; " : ", else ";
  if (!one_shot)
    selection.reason += concat("in blocks of at most ", group.layout.block_bytes, "; ");
  selection.reason += group.transport;
  return selection;
}

}  // namespace fastcomm
