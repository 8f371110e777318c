#include "coll/short_call.h"

#include "coll/operations.h"

namespace fastcomm {

Call ShortCall::whole(const CallRecord& record) const {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.op = op;
  call.count = count;
  call.input = input;
  call.output = output;
  call.record = record;
  return call;
}

std::optional<ShortCall> short_of(const Call& call) {
  if (!row_of(call.kind).may_be_short || call.op == ReduceOp::kPremulSum) return std::nullopt;
  // A step of another call, or one that has more to compare.
  if (call.part_of != nullptr || call.tail != nullptr || call.signature != 0 ||
      !call.detail.empty())
    return std::nullopt;
  return ShortCall{call.kind, call.dtype, call.op, call.count, call.input, call.output};
}

}  // namespace fastcomm
