#include "tensors/gradients.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/signature.h"
#include "tensors/dtype.h"

namespace fastcomm {
namespace {

std::string listed(at::IntArrayRef numbers) {
  std::string text;
  for (const int64_t number : numbers) text += concat(text.empty() ? "[" : ", ", number);
  return text.empty() ? "[]" : text + "]";
}

/// "[3, 4] float32", with its strides if they are not the usual ones.
std::string form_of(const at::Tensor& tensor) {
  const std::string strides =
      tensor.is_contiguous() ? "" : concat(" with strides ", listed(tensor.strides()));
  return concat(listed(tensor.sizes()), " ", c10::getDtypeNames(tensor.scalar_type()).first,
                strides);
}

std::string named(size_t index, const at::Tensor& tensor) {
  return concat("gradient ", index, " (", form_of(tensor), ")");
}

void check(size_t index, const at::Tensor& tensor, at::Device device) {
  FC_CHECK(tensor.layout() == at::kStrided && tensor.has_storage(), "fused_all_reduce: gradient ",
           index, " is ", tensor.layout(),
           ": only dense gradients can be reduced (sparse=False makes an embedding's dense)");
  FC_CHECK(tensor.device() == device || (device.is_cpu() && !tensor.is_meta()),
           "fused_all_reduce: ", named(index, tensor), " is on ", tensor.device(), ", not on ",
           device.is_cpu() ? "the CPU" : device.str());
  FC_CHECK(tensor.is_floating_point() || tensor.is_complex(),
           "fused_all_reduce: ", named(index, tensor), " is not floating-point");
  FC_CHECK(dtype_of(c10::toRealValueType(tensor.scalar_type())) != DType::kOther,
           "fused_all_reduce: no kernel reduces ", named(index, tensor));
  FC_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
           "fused_all_reduce: ", named(index, tensor),
           " overlaps itself (an expanded tensor): clone it");
}

/// Checks that no two of them share memory.
void check_apart(const TensorList& dense) {
  std::vector<size_t> order(dense.size());
  std::iota(order.begin(), order.end(), 0);
  const auto begin = [&](size_t i) { return static_cast<const char*>(dense[i].const_data_ptr()); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return begin(a) < begin(b); });
  size_t last = dense.size();
  for (const size_t i : order) {
    if (dense[i].nbytes() == 0) continue;
    FC_CHECK(last == dense.size() || begin(last) + dense[last].nbytes() <= begin(i),
             "fused_all_reduce: gradients ", std::min(last, i), " and ", std::max(last, i),
             " share memory");
    last = i;
  }
}

/// Its memory in order, on the device, complex numbers as pairs.
at::Tensor as_dense(const at::Tensor& tensor, at::Device device) {
  const at::Tensor detached = tensor.detach();
  // Removes gaps first: a lazy tensor, or one that moves, then keeps its order of elements.
  return as_resolved_pairs(detached.is_non_overlapping_and_dense() ? detached
                                                                   : detached.contiguous())
      .to(device);
}

/// Copies a stand-in back to the user's tensor.
void bring_back(const at::Tensor& made, const at::Tensor& user) {
  if (!user.is_alias_of(made)) user.copy_(user.is_complex() ? at::view_as_complex(made) : made);
}

/// The type in which a gradient of this type travels.
DType wire_of(DType dtype, const GradientOptions& options) {
  return options.wire && dtype == DType::kFloat32 ? dtype_of(*options.wire) : dtype;
}

}  // namespace

bool fits_slots(at::TensorList tensors, const GradientOptions& options, const ScratchLayout& layout,
                int size) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const DType dtype = dtype_of(c10::toRealValueType(tensor.scalar_type()));
    const auto count = static_cast<uint64_t>(tensor.numel()) * (tensor.is_complex() ? 2 : 1);
    return units_fit(count, wire_of(dtype, options), layout, size);
  });
}

GradientTensors::GradientTensors(TensorList tensors, const GradientOptions& options,
                                 at::Device device)
    : users_(std::move(tensors)), options_(options) {
  const DType wire = options.wire ? dtype_of(*options.wire) : DType::kFloat32;
  FC_CHECK(wire == DType::kFloat32 || wire == DType::kFloat16 || wire == DType::kBFloat16,
           "fused_all_reduce: comm_dtype is float16 or bfloat16, not ", dtype_name(wire));
  FC_CHECK(options.shards.empty() || options.shards.size() == users_.size(),
           "fused_all_reduce: ", options.shards.size(), " lists of offsets for ", users_.size(),
           " gradients");
  FC_CHECK(options.residuals.empty() || options.residuals.size() == users_.size(),
           "fused_all_reduce: ", options.residuals.size(), " residuals for ", users_.size(),
           " gradients");
  for (size_t i = 0; i < users_.size(); ++i) {
    check(i, users_[i], device);
    const bool any_number =
        options.spec.norm == NormKind::kTwo || options.spec.norm == NormKind::kNone;
    FC_CHECK(any_number || !users_[i].is_complex(), "fused_all_reduce: ", named(i, users_[i]),
             " is complex: norm_type must be 2 or None");
    dense_.push_back(as_dense(users_[i], device));
    const DType dtype = dtype_of(dense_[i].scalar_type());
    gradients_.push_back({static_cast<char*>(dense_[i].mutable_data_ptr()),
                          static_cast<uint64_t>(dense_[i].numel()), dtype,
                          wire_of(dtype, options)});
    if (!options.residuals.empty()) add_residual(i, gradients_.back());
    if (!options.shards.empty()) check_shards(i);
  }
  check_apart(dense_);
  if (!device.is_cpu()) return;
  list_ = std::make_shared<GradientList>(gradients_, options.spec);
  list_->shard(options.shards);
}

void GradientTensors::add_residual(size_t index, Gradient& gradient) {
  const at::Tensor& given = options_.residuals[index];
  FC_CHECK(!given.is_conj() && !given.is_neg(), "fused_all_reduce: the residual of ",
           named(index, users_[index]),
           " is lazily conjugated or negated, and would be written to: resolve it once");
  const at::Tensor residual = as_pairs(given);
  FC_CHECK(residual.device() == users_[index].device() && residual.scalar_type() == at::kFloat &&
               residual.sizes() == dense_[index].sizes() &&
               residual.strides() == dense_[index].strides(),
           "fused_all_reduce: the residual of ", named(index, users_[index]), " is ",
           form_of(given), " on ", given.device(), ", not of float32 and alike");
  residuals_.push_back(residual.detach().to(dense_[index].device()));
  gradient.residual = residuals_[index].mutable_data_ptr<float>();
}

void GradientTensors::check_shards(size_t index) const {
  const ShardOffsets& offsets = options_.shards[index];
  if (offsets.empty()) return;
  FC_CHECK(users_[index].is_alias_of(dense_[index]) ||
               (users_[index].device() != dense_[index].device() &&
                users_[index].is_non_overlapping_and_dense()),
           "fused_reduce_scatter: ", named(index, users_[index]),
           " has gaps, so that it cannot be divided");
  FC_CHECK(offsets.size() >= 2 && std::is_sorted(offsets.begin(), offsets.end()) &&
               offsets.front() == 0 &&
               offsets.back() == static_cast<uint64_t>(dense_[index].numel()),
           "fused_reduce_scatter: the offsets of ", named(index, users_[index]),
           " do not go from 0 to its ", dense_[index].numel(), " elements");
}

void GradientTensors::write_back() const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < users_.size(); ++i) bring_back(dense_[i], users_[i]);
  for (size_t i = 0; i < residuals_.size(); ++i) bring_back(residuals_[i], options_.residuals[i]);
}

void GradientTensors::write_results(const TensorList& results) const {
  const std::vector<double> parts = list_->parts();
  const double norm = norm_of_parts(parts.data(), parts.size(), options_.spec.norm);
  if (results[0].scalar_type() == at::kDouble) {
    *results[0].mutable_data_ptr<double>() = norm;
  } else {
    *results[0].mutable_data_ptr<float>() = static_cast<float>(norm);
  }
  *results[1].mutable_data_ptr<float>() = list_->finite() ? 0.0f : 1.0f;
  if (!parts.empty()) {
    std::memcpy(results[2].mutable_data_ptr<double>(), parts.data(), parts.size() * sizeof(double));
  }
}

uint64_t GradientTensors::signature() const {
  uint64_t unscale = 0;
  std::memcpy(&unscale, &options_.spec.unscale, sizeof(unscale));
  uint64_t hash = mix(mix(users_.size(), unscale), options_.spec.average ? 1 : 0);
  hash = mix(hash, static_cast<uint64_t>(options_.spec.norm));
  for (const ShardOffsets& offsets : options_.shards) {
    hash = mix(hash, offsets.size());
    for (const uint64_t offset : offsets) hash = mix(hash, offset);
  }
  for (size_t i = 0; i < users_.size(); ++i) {
    hash = mix(hash, static_cast<uint64_t>(users_[i].scalar_type()));
    hash = mix(hash, static_cast<uint64_t>(gradients_[i].wire));
    hash = mix(hash, static_cast<uint64_t>(dense_[i].dim()));
    for (int64_t d = 0; d < dense_[i].dim(); ++d) {
      hash = mix(hash, static_cast<uint64_t>(dense_[i].size(d)));
      if (dense_[i].size(d) > 1) hash = mix(hash, static_cast<uint64_t>(dense_[i].stride(d)));
    }
  }
  return hash;
}

std::string GradientTensors::describe() const {
  constexpr const char* kNorms[] = {"no norm", "norm 1", "norm 2", "norm inf"};
  std::string text = concat(users_.size(), users_.size() == 1 ? " gradient, " : " gradients, ",
                            kNorms[static_cast<int>(options_.spec.norm)]);
  if (!options_.spec.average) text += ", summed";
  if (options_.spec.unscale != 1) text += concat(", unscale ", options_.spec.unscale);
  if (options_.wire) text += concat(", wire ", dtype_name(dtype_of(*options_.wire)));
  constexpr size_t kEnough = 200;
  for (size_t i = 0; i < users_.size() && text.size() < kEnough; ++i) {
    text += (i == 0 ? ": " : ", ") + form_of(users_[i]);
  }
  return text;
}

void check_offsets(const std::vector<ShardOffsets>& shards, int size) {
  for (const ShardOffsets& offsets : shards) {
    FC_CHECK(offsets.empty() || offsets.size() == static_cast<size_t>(size) + 1,
             "shards: ", offsets.size(), " offsets for a group of ", size,
             " ranks, which needs one more than ranks");
  }
}

TensorList make_gradient_results(const TensorList& gradients, at::Device device) {
  const bool wide = std::any_of(gradients.begin(), gradients.end(), [](const at::Tensor& t) {
    return c10::toRealValueType(t.scalar_type()) == at::kDouble;
  });
  const auto options = at::TensorOptions(device);
  return {at::empty({}, options.dtype(wide ? at::kDouble : at::kFloat)),
          at::empty({}, options.dtype(at::kFloat)),
          at::empty({static_cast<int64_t>(gradients.size())}, options.dtype(at::kDouble))};
}

}  // namespace fastcomm
