#include "coll/call.h"

#include <cstring>

#include "coll/operations.h"
#include "core/error.h"

namespace fastcomm {

const char* algorithm_name(Algorithm algorithm) {
  constexpr const char* kNames[] = {"gloo",  "nothing",  "one-shot", "pipelined",
                                    "flags", "by table", "ring",     "in place"};
  return kNames[static_cast<int>(algorithm)];
}

CallHeader make_header(const Call& call, uint64_t sequence, uint8_t algorithm) {
  CallHeader header{};
  header.sequence = sequence;
  header.count = call.count;
  header.root = call.root;
  header.kind = static_cast<uint8_t>(call.kind);
  header.dtype = static_cast<uint8_t>(call.dtype);
  header.op = static_cast<uint8_t>(call.op);
  header.algorithm = algorithm;
  header.signature = call.signature;
  header.balance = call.balance;
  return header;
}

bool has_detail(const CallHeader& header) {
  return row_of(static_cast<OpKind>(header.kind)).has_detail ||
         static_cast<ReduceOp>(header.op) == ReduceOp::kPremulSum ||
         static_cast<DType>(header.dtype) == DType::kOther;
}

std::string describe_call(const CallHeader& header, const char* detail) {
  const auto kind = header.kind < kNumOpKinds ? static_cast<OpKind>(header.kind) : OpKind::kOther;
  const auto dtype = header.dtype < kNumDTypes ? static_cast<DType>(header.dtype) : DType::kOther;
  const auto op = header.op < kNumReduceOps ? static_cast<ReduceOp>(header.op) : ReduceOp::kOther;
  const OperationRow& row = row_of(kind);
  std::string text = concat(row.name, "(");
  if (row.has_data) {
    if (op != ReduceOp::kNone) text += concat(reduce_op_name(op), ", ");
    if (!row.takes_list) text += concat(dtype_name(dtype), row.counted || detail[0] ? ", " : "");
    if (row.counted) text += concat(header.count, " elements");
    if (header.root >= 0) text += concat(", root ", header.root);
    if (detail[0] != '\0') {
      text += (row.counted ? ", " : "") + std::string(detail, strnlen(detail, kDetailBytes));
    }
  }
  return text + concat("), sequence ", header.sequence);
}

std::string describe_call(const CallNotice& notice) {
  const std::string call =
      describe_call(notice.header, has_detail(notice.header) ? notice.detail : "");
  return call + at_site(std::string(notice.site, strnlen(notice.site, kSiteBytes)));
}

}  // namespace fastcomm
