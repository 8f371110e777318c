#include "c10d/requests/convert.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstring>
#include <optional>

#include "c10d/life/compat.h"
#include "core/error.h"
#include "kernels/reduce_cpu.h"
#include "tensors/plain_tensors.h"

namespace fastcomm {

ReduceOp reduce_op_of(const ::c10d::ReduceOp& op) {
  if (op == ::c10d::ReduceOp::SUM) return ReduceOp::kSum;
  if (op == ::c10d::ReduceOp::AVG) return ReduceOp::kAvg;
  switch (op.op_) {
    case ::c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case ::c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case ::c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case ::c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case ::c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case ::c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    case ::c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::kPremulSum;
    default:
      return ReduceOp::kOther;
  }
}

bool has_factor_on_device(const ::c10d::ReduceOp& op) {
  if (reduce_op_of(op) != ReduceOp::kPremulSum) return false;
  const auto* supplement = reinterpret_cast<const PremulSumSupplement*>(op.supplement_.get());
  return supplement != nullptr && supplement->tensor_factor.defined() &&
         !supplement->tensor_factor.is_cpu();
}

void set_reduction(Call& call, const ::c10d::ReduceOp& op) {
  call.op = reduce_op_of(op);
  if (call.op != ReduceOp::kPremulSum) return;
  const auto* supplement = reinterpret_cast<const PremulSumSupplement*>(op.supplement_.get());
  FC_CHECK(supplement != nullptr,
           "PREMUL_SUM without a factor: make it with its factor, as "
           "torch.distributed.ReduceOp.PREMUL_SUM(0.5)");
  call.factor = supplement->double_factor;
  if (supplement->tensor_factor.defined()) {
    FC_CHECK(supplement->tensor_factor.is_cpu(), "PREMUL_SUM: the factor is a tensor on ",
             supplement->tensor_factor.device(), ", not on the CPU");
    call.factor = supplement->tensor_factor.item<double>();
  }
  std::memcpy(&call.signature, &call.factor, sizeof(call.factor));
  call.detail = concat("factor ", call.factor);
}

const char* why_no_reduction_of(at::ScalarType type, ReduceOp op) {
  const bool linear = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  if (c10::isComplexType(type) && !linear)
    return "complex numbers have sum, avg and premul_sum only";
  return why_no_reduction(dtype_of(c10::toRealValueType(type)), op);
}

void require_reduction(const char* operation, const at::Tensor& tensor,
                       const ::c10d::ReduceOp& op) {
  const ReduceOp reduction = reduce_op_of(op);
  const char* reason = why_no_reduction_of(tensor.scalar_type(), reduction);
  if (reason == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              concat(operation, "(", reduce_op_name(reduction), ", ",
                     c10::getDtypeNames(tensor.scalar_type()).first, "): no kernel does this; ",
                     reason, ". Nothing was sent"));
}

namespace {

/// On the host, pinned where possible.
at::Tensor on_host(const at::Tensor& tensor) {
  static std::atomic<bool> pins{true};
  if (tensor.is_cpu() || !pins.load(std::memory_order_relaxed)) return tensor.cpu();
  try {
    const auto options = tensor.options().device(at::kCPU).pinned_memory(true);
    return at::empty(tensor.sizes(), options).copy_(tensor);
  } catch (const c10::Error&) {  // a build or a device that cannot
    pins.store(false, std::memory_order_relaxed);
    return tensor.cpu();
  }
}

}  // namespace

Buffer::Buffer(const at::Tensor& tensor, Home home) : user_(tensor) {
  const bool there = home == Home::kTensor || tensor.device().is_cpu();
  const bool plain = tensor.is_contiguous() && !tensor.is_complex() && !tensor.is_neg() && there;
  if (plain) {
    flat_ = tensor;
  } else {
    const at::Tensor real = as_resolved_pairs(tensor.detach());
    flat_ = (there ? real : on_host(real)).contiguous();
  }
  dtype_ = dtype_of(flat_.scalar_type());
  count_ = dtype_ == DType::kOther ? flat_.nbytes() : static_cast<uint64_t>(flat_.numel());
}

void Buffer::write_back() const {
  if (flat_.is_same(user_) || flat_.is_alias_of(user_)) return;
  const at::Tensor result = user_.is_complex() ? at::view_as_complex(flat_) : flat_;
  const at::NoGradGuard no_grad;
  // The thread that ends an asynchronous operation is in no mode of the user's.
  std::optional<c10::InferenceMode> inference;
  if (user_.is_inference()) inference.emplace();
  user_.detach().copy_(result);
}

void require_dense(const char* operation, const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_meta()) return;
  throw Error(ErrorCode::kUnsupported,
              concat(operation, ": a tensor of layout ", tensor.layout(), " and dtype ",
                     tensor.scalar_type(), " on ", tensor.device(),
                     " cannot be moved over shared memory; nothing was sent. Give it as dense "
                     "tensors"));
}

void require_writable(const char* operation, const at::Tensor& tensor) {
  require_dense(operation, tensor);
  FC_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, operation,
           ": elements of a tensor that is written share memory, as those of expand() do; nothing "
           "was sent. Give it a clone()");
}

}  // namespace fastcomm
