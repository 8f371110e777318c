#include "c10d/stock_support.h"

#include <c10/core/ScalarType.h>

#include "core/error.h"

namespace fastcomm {
namespace {

using RedOpType = ::c10d::ReduceOp::RedOpType;

const char* reduction_name(RedOpType op) {
  constexpr const char* kNames[] = {"sum",  "avg", "product", "min",       "max",
                                    "band", "bor", "bxor",    "premul_sum"};
  const auto index = static_cast<size_t>(op);
  return index < sizeof(kNames) / sizeof(*kNames) ? kNames[index] : "this reduction";
}

bool is_bitwise(RedOpType op) {
  return op == RedOpType::BAND || op == RedOpType::BOR || op == RedOpType::BXOR;
}

bool has_gloo_kernel(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

const char* why_not(const at::Tensor& tensor, RedOpType op) {
  const at::ScalarType type = tensor.scalar_type();
  if (op == RedOpType::PREMUL_SUM) return "multiply before and use sum";
  if (tensor.layout() != at::kStrided && op != RedOpType::SUM)
    return "sparse tensors have sum only";
  if (is_bitwise(op) && !at::isIntegralType(type, true)) return "bits of integers only";
  if (op == RedOpType::AVG && type == at::kBool) return "use sum or max";
  if (!has_gloo_kernel(type)) return "convert the tensor";
  return nullptr;
}

}  // namespace

void require_stock(const char* operation, const at::Tensor& tensor) {
  const bool device = tensor.device().is_cpu() || tensor.device().is_cuda();
  if (device && tensor.layout() == at::kStrided) return;
  throw Error(ErrorCode::kUnsupported,
              concat(operation, ": a tensor of layout ", tensor.layout(), " on ", tensor.device(),
                     " can be moved neither over shared memory nor by Gloo; nothing was sent"));
}

void require_stock_all_reduce(const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
  if (tensor.layout() != at::kSparse) require_stock("all_reduce", tensor);
  const RedOpType type = op.op_;
  const char* reason = why_not(tensor, type);
  if (reason == nullptr) return;
  const char* layout = tensor.layout() == at::kStrided ? "" : ", Sparse";
  throw Error(
      ErrorCode::kUnsupported,
      concat("all_reduce(", reduction_name(type), ", ",
             c10::getDtypeNames(tensor.scalar_type()).first, layout,
             "): neither a native kernel nor Gloo does this; ", reason, ". Nothing was sent"));
}

}  // namespace fastcomm
