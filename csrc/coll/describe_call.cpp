#include "coll/describe_call.h"

#include <cstring>

#include "coll/operations.h"
#include "core/call_site.h"
#include "core/error.h"

namespace fastcomm {

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
  std::string text = concat(op_kind_name(kind), "(");
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
