// The tail of a layer that is cut over ranks, as one operator:
// torch.ops.fastcomm.all_reduce_add_rms_norm_(x, residual, weight, eps, group_name).
//
// Rows of a short message are ended while they are summed, all others once the sum is there: the
// bits are the same (kernels/add_rms_norm_cpu.h). On the CPU alone.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "c10d/edge/library.h"
#include "c10d/life/without_gil.h"
#include "kernels/add_rms_norm_cpu.h"
#include "tensors/dtype.h"

namespace fastcomm {
namespace {

constexpr const char* kName = "all_reduce_add_rms_norm_";

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto *one = static_cast<const char*>(a.const_data_ptr()),
             *other = static_cast<const char*>(b.const_data_ptr());
  return one < other + b.nbytes() && other < one + a.nbytes();
}

/// Raises unless this is possible for a call of this rank: nothing is sent before.
void check(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  const auto type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, kName,
              ": takes float32, bfloat16 or float16, not ", type);
  TORCH_CHECK(residual.scalar_type() == type && weight.scalar_type() == type, kName, ": x is ",
              type, ", the residual ", residual.scalar_type(), ", the weight ",
              weight.scalar_type(), "; all must have one dtype");
  TORCH_CHECK(x.sizes() == residual.sizes(), kName, ": x has the shape ", x.sizes(),
              ", the residual ", residual.sizes());
  TORCH_CHECK(
      x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1) && weight.size(0) > 0, kName,
      ": x ", x.sizes(), " needs a weight with as many elements as its rows, not ", weight.sizes());
  const std::pair<const char*, const at::Tensor&> all[] = {
      {"x", x}, {"the residual", residual}, {"the weight", weight}};
  for (const auto& [name, tensor] : all) {
    TORCH_CHECK(tensor.is_cpu(), kName, ": ", name, " is on ", tensor.device(),
                "; it takes tensors of the CPU");
    TORCH_CHECK(tensor.is_contiguous(), kName, ": ", name, " is not contiguous");
    TORCH_CHECK(!(at::GradMode::is_enabled() && tensor.requires_grad()), kName, ": ", name,
                " requires grad, and there is no derivative; call it under torch.no_grad()");
  }
  TORCH_CHECK(!overlap(x, residual) && !overlap(x, weight) && !overlap(residual, weight), kName,
              ": x, the residual and the weight share memory");
  TORCH_CHECK(std::isfinite(eps) && eps >= 0, kName, ": eps is ", eps, ", not 0 or more");
}

void all_reduce_add_rms_norm_(const at::Tensor& x, const at::Tensor& residual,
                              const at::Tensor& weight, double eps, std::string group_name) {
  check(x, residual, weight, eps);
  const WithoutGil no_gil;
  const auto hidden = static_cast<size_t>(weight.numel());
  const RmsRows rows{x.mutable_data_ptr(),
                     residual.mutable_data_ptr(),
                     weight.const_data_ptr(),
                     static_cast<size_t>(x.numel()) / hidden,
                     hidden,
                     static_cast<float>(eps)};
  const auto tail = std::make_shared<AddRmsNorm>(dtype_of(x.scalar_type()), rows);
  Tensors tensors{x};
  const auto [any, own] = backend_of(group_name, c10::kCPU);
  const WorkPtr work =
      own != nullptr ? own->all_reduce_add_rms_norm(tensors, tail) : any->allreduce(tensors);
  if (work != nullptr) work->wait();
  if (!tail->done()) tail->run_all();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastcomm, library) {
  library.def(
      "all_reduce_add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, str "
      "group_name) -> ()");
}

TORCH_LIBRARY_IMPL(fastcomm, CPU, library) {
  library.impl("all_reduce_add_rms_norm_", all_reduce_add_rms_norm_);
}

}  // namespace fastcomm
