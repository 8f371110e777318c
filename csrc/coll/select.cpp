#include "coll/select.h"

#include "core/error.h"
#include "kernels/reduce_cpu.h"

namespace fastcomm {
namespace {

/// The largest message of that algorithm in one rank.
uint64_t limit_of(const AlgorithmRow& row, const GroupTraits& group) {
  if (row.messages == nullptr) return UINT64_MAX;
  return group.layout.payload_bytes / static_cast<uint64_t>(row.messages(group.size));
}

std::string reason_for(Algorithm algorithm, const GroupTraits& group, const Query& query) {
  const OperationRow& row = row_of(query.kind);
  const uint64_t block = group.layout.block_bytes;
  switch (algorithm) {
    case Algorithm::kDelegated:
      if (!group.native) return group.why_not_native;
      if (row.algorithms.empty()) return "there is no such operation";
      return concat("no native kernel for this reduction of ", dtype_name(query.dtype), ": ",
                    why_no_reduction(query.dtype, query.op));
    case Algorithm::kNothing:
      return "the group has one rank";
    case Algorithm::kFlags:
      return concat("no data; ", group.transport);
    case Algorithm::kByTable:
      return concat("in one step where no rank sends more than ", group.layout.payload_bytes,
                    " bytes, else in blocks of at most ", block, "; ", group.transport);
    case Algorithm::kRing:
      return concat("at most ", kEagerBytes,
                    " bytes travel with their announcement, more in pieces of ",
                    ring_slot_bytes(group.size), "; ", group.transport);
    default:
      break;
  }
  if (row.takes_list) return concat("a list, in blocks of at most ", block, "; ", group.transport);
  const bool one_shot = algorithm == Algorithm::kOneShot;
  std::string text =
      concat(query.bytes, " bytes are ", one_shot ? "at most" : "more than",
             " the one-shot limit of ", limit_of(row.algorithms.front(), group), " (",
             chosen_by_text(group.payload_by, "FASTCOMM_ONE_SHOT_BYTES"), "); ");
  if (row_of(query.kind, algorithm)->may_be_in_place(query.bytes)) {
    text += concat("in place where every rank's tensor lies in shared memory (fastcomm.empty)",
                   one_shot ? "; " : ", else ");
  }
  if (!one_shot) text += concat("in blocks of at most ", block, "; ");
  return text + group.transport;
}

}  // namespace

Algorithm select_algorithm(const GroupTraits& group, const Query& query) {
  const OperationRow& row = row_of(query.kind);
  if (!group.native) return Algorithm::kDelegated;
  if (row.reduces && why_no_reduction(query.dtype, query.op) != nullptr) {
    return Algorithm::kDelegated;
  }
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
  const Algorithm algorithm = select_algorithm(group, query);
  return {algorithm, reason_for(algorithm, group, query)};
}

}  // namespace fastcomm
