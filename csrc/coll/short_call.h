// A call that is nothing but a sum or a barrier, by the parts that it has.
#pragma once

#include <cstdint>
#include <optional>

#include "coll/call.h"

namespace fastcomm {

struct ShortCall {
  OpKind kind;  // OperationRow::may_be_short
  DType dtype = DType::kOther;
  ReduceOp op = ReduceOp::kNone;
  uint64_t count = 0;  // elements
  const void* input = nullptr;
  void* output = nullptr;  // may be the input

  uint64_t bytes() const { return count * dtype_size(dtype); }
  /// The same with all that a call may have. It tells `record`.
  Call whole(const CallRecord& record) const;
};

/// The parts of a call, if it has no others.
std::optional<ShortCall> short_of(const Call& call);

}  // namespace fastcomm
