#include "coll/call.h"

#include "core/error.h"

namespace fastcomm {

CallHeader make_header(const Call& call, uint64_t sequence, uint8_t algorithm) {
  CallHeader header{};
  header.sequence = sequence;
  header.count = call.count;
  header.root = call.root;
  header.kind = static_cast<uint8_t>(call.kind);
  header.dtype = static_cast<uint8_t>(call.dtype);
  header.op = static_cast<uint8_t>(call.op);
  header.algorithm = algorithm;
  return header;
}

std::string describe_call(const CallHeader& header) {
  const auto kind = static_cast<OpKind>(header.kind <= 5 ? header.kind : 5);
  const auto dtype = static_cast<DType>(header.dtype < kNumDTypes ? header.dtype : kNumDTypes - 1);
  const auto op = static_cast<ReduceOp>(header.op <= 3 ? header.op : 3);
  std::string text = concat(op_kind_name(kind), "(");
  if (kind != OpKind::kBarrier) {
    if (op != ReduceOp::kNone) text += concat(reduce_op_name(op), ", ");
    text += concat(dtype_name(dtype), ", ", header.count, " elements");
    if (header.root >= 0) text += concat(", root ", header.root);
  }
  return text + concat("), sequence ", header.sequence);
}

}  // namespace fastcomm
