#include "coll/gradient_list.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace fastcomm {
namespace {

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

bool travels_as(DType dtype, DType wire) {
  return wire == dtype ||
         (dtype == DType::kFloat32 && (wire == DType::kFloat16 || wire == DType::kBFloat16));
}

/// NaN wins.
double larger(double a, double b) {
  if (std::isnan(a)) return a;
  return b > a || std::isnan(b) ? b : a;
}

/// The result slot that leaves room for the stage slots of all ranks' slices in what the layout has.
uint64_t result_slot(const ScratchLayout& layout, int size) {
  const uint64_t room = layout.block_bytes + layout.result_bytes;
  return room / (static_cast<uint64_t>(size) + 1) / kLineBytes * kLineBytes;
}

}  // namespace

GradientList::GradientList(std::vector<Gradient> tensors, const GradientSpec& spec)
    : tensors_(std::move(tensors)), spec_(spec) {
  uint64_t units = 0;
  for (const Gradient& tensor : tensors_) {
    if (!is_floating(tensor.dtype) || !travels_as(tensor.dtype, tensor.wire)) {
      throw Error(ErrorCode::kUnsupported, concat("gradients of ", dtype_name(tensor.dtype),
                                                  " do not travel as ", dtype_name(tensor.wire)));
    }
    units += ceil_div(tensor.count, kNormBlock);
  }
  FC_CHECK(units < UINT32_MAX, "a list of gradients of ", units, " units is too long");
  units_.reserve(units);
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    for (uint64_t first = 0; first < tensors_[t].count; first += kNormBlock) {
      const uint64_t count = smaller(kNormBlock, tensors_[t].count - first);
      units_.push_back({t, static_cast<uint32_t>(count), first, 0, 0});
    }
  }
  norms_.resize(units_.size());
}

uint64_t GradientList::elements() const {
  uint64_t count = 0;
  for (const Gradient& tensor : tensors_) count += tensor.count;
  return count;
}

uint64_t GradientList::largest_unit() const {
  uint64_t largest = 0;
  for (const GradientUnit& unit : units_) largest = std::max(largest, wire_bytes(unit));
  return round_up(largest, kLineBytes) + sizeof(BlockNorm);
}

bool GradientList::fits(const ScratchLayout& layout, int size) const {
  return largest_unit() <= result_slot(layout, size);
}

void GradientList::deal(const ScratchLayout& layout, int size) {
  size_ = size;
  result_bytes_ = result_slot(layout, size);
  stage_bytes_ = result_bytes_ * static_cast<uint64_t>(size);
  origin_ = layout.stage(0);
  uint64_t left = 0;  // bytes of result slots, of the units that are not dealt yet
  for (const GradientUnit& unit : units_) {
    left += round_up(wire_bytes(unit), kLineBytes) + sizeof(BlockNorm);
  }
  cuts_.assign(1, 0);
  uint32_t next = 0;
  while (next < units_.size()) {
    // An equal share of what is left for every rank, if that is less than a slot.
    const uint64_t share = smaller(result_bytes_, ceil_div(left, static_cast<uint64_t>(size)));
    uint64_t stage = 0;
    for (int owner = 0; owner < size; ++owner) {
      uint64_t result = 0, norms = 0;
      while (next < units_.size() && result + norms < share) {
        GradientUnit& unit = units_[next];
        const uint64_t bytes = round_up(wire_bytes(unit), kLineBytes);
        if (result + bytes + norms + sizeof(BlockNorm) > result_bytes_) break;
        unit.stage = static_cast<uint32_t>(stage);
        unit.result = static_cast<uint32_t>(result);
        stage += bytes;
        result += bytes;
        norms += sizeof(BlockNorm);
        ++next;
      }
      left -= result + norms;
      cuts_.push_back(next);
    }
    ++blocks_;
  }
}

uint32_t GradientList::run_from(uint32_t first, uint32_t end, uint64_t& elements) const {
  uint32_t last = first;
  while (last + 1 < end && units_[last + 1].tensor == units_[first].tensor) ++last;
  elements = units_[last].first + units_[last].count - units_[first].first;
  return last + 1;
}

std::vector<double> GradientList::parts() const {
  std::vector<double> result(tensors_.size(), 0);
  for (size_t i = 0; i < units_.size(); ++i) {
    double& part = result[units_[i].tensor];
    part = spec_.norm == NormKind::kInfinity ? larger(part, norms_[i].part) : part + norms_[i].part;
  }
  return result;
}

bool GradientList::finite() const {
  return std::all_of(norms_.begin(), norms_.end(), [](const BlockNorm& n) { return n.finite; });
}

double norm_of_parts(const double* parts, size_t count, NormKind kind) {
  double total = 0;
  for (size_t i = 0; i < count; ++i) {
    total = kind == NormKind::kInfinity ? larger(total, parts[i]) : total + parts[i];
  }
  return kind == NormKind::kTwo ? std::sqrt(total) : total;
}

}  // namespace fastcomm
