// Choice of the algorithm, and its reason: one pure function of values that all ranks agree on.
//
// Ranks that chose differently would wait for steps that never come. So nothing here may depend on
// an address, on the load, or on a setting of one rank, but only on sizes, types, the group's
// configuration and its transport. `explain` prints the reason beside each choice.
#pragma once

#include <cstdint>
#include <string>

#include "coll/call.h"
#include "coll/operations.h"
#include "coll/plan.h"
#include "coll/slot_sizes.h"
#include "core/types.h"

namespace fastcomm {

/// Values that every rank of a group holds in common.
struct GroupTraits {
  int size = 1;
  bool native = false;         // the ranks share memory
  std::string why_not_native;  // if they do not
  std::string transport;       // "shared memory (memfd)"
  ScratchLayout layout{};
  ChosenBy payload_by = ChosenBy::kDefault;
};

struct Query {
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kNone;
  uint64_t bytes = 0;  // of one rank's message
};

struct Selection {
  Algorithm algorithm = Algorithm::kDelegated;
  std::string reason;
};

/// The choice without its reason: the hot path.
Algorithm select_algorithm(const GroupTraits& group, const Query& query);

/// The row of the chosen algorithm; nullptr if it has no schedule.
const AlgorithmRow* row_of(OpKind kind, Algorithm algorithm);

/// The same choice with its reason.
Selection explain_selection(const GroupTraits& group, const Query& query);

}  // namespace fastcomm
