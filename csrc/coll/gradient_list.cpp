#include "coll/gradient_list.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace fastcomm {
namespace {

bool travels_as(DType dtype, DType wire) {
  return wire == dtype ||
         (dtype == DType::kFloat32 && (wire == DType::kFloat16 || wire == DType::kBFloat16));
}

/// Size of a result slot that leaves room in the layout for the stage slots of all ranks' slices.
uint64_t result_slot(const ScratchLayout& layout, int size) {
  const uint64_t room = layout.block_bytes + layout.result_bytes;
  return room / (static_cast<uint64_t>(size) + 1) / kLineBytes * kLineBytes;
}

/// Bytes of a unit in a result slot, with its norm.
uint64_t slot_bytes_for(uint64_t bytes) { return round_up(bytes, kLineBytes) + sizeof(BlockNorm); }

template <class Join, class Load>
double joined(uint32_t count, const Load& load) {
  double waiting[PartsTree<Join>::kLevels];
  PartsTree<Join> tree(waiting);
  for (uint32_t i = 0; i < count; ++i) tree.add(load(i));
  return tree.total();
}

/// Joins load(0), ..., load(count - 1) in the order of kernels/norm.h.
template <class Load>
double joined(NormKind kind, uint32_t count, const Load& load) {
  return kind == NormKind::kInfinity ? joined<JoinLargest>(count, load)
                                     : joined<JoinSums>(count, load);
}

}  // namespace

bool units_fit(uint64_t count, DType wire, const ScratchLayout& layout, int size) {
  const uint64_t largest = smaller(kNormBlock, count) * dtype_size(wire);
  return count == 0 || slot_bytes_for(largest) <= result_slot(layout, size);
}

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
      const auto place = static_cast<uint32_t>(units_.size());
      units_.push_back({t, static_cast<uint32_t>(count), first, 0, 0, place});
    }
  }
  norms_.resize(units_.size());
}

uint64_t GradientList::elements() const {
  uint64_t count = 0;
  for (const Gradient& tensor : tensors_) count += tensor.count;
  return count;
}

uint64_t GradientList::slot_bytes_of(const GradientUnit& unit) const {
  return slot_bytes_for(wire_bytes(unit));
}

void GradientList::deal(const ScratchLayout& layout, int size) {
  size_ = size;
  result_bytes_ = result_slot(layout, size);
  stage_bytes_ = result_bytes_ * static_cast<uint64_t>(size);
  origin_ = layout.stage(0, 0);
  cuts_.assign(1, 0);
  const bool owned = std::any_of(tensors_.begin(), tensors_.end(),
                                 [](const Gradient& tensor) { return tensor.owner >= 0; });
  if (shards_.empty() && !owned) {
    deal_evenly();
  } else {
    deal_to_owners();
  }
}

bool GradientList::put(GradientUnit& unit, Filling& filling) const {
  if (filling.result + filling.norms + slot_bytes_of(unit) > result_bytes_) return false;
  const uint64_t bytes = round_up(wire_bytes(unit), kLineBytes);
  unit.stage = static_cast<uint32_t>(filling.stage);
  unit.result = static_cast<uint32_t>(filling.result);
  filling.stage += bytes;
  filling.result += bytes;
  filling.norms += sizeof(BlockNorm);
  return true;
}

void GradientList::deal_evenly() {
  uint64_t left = 0;  // bytes of undealt units in result slots
  for (const GradientUnit& unit : units_) left += slot_bytes_of(unit);
  uint32_t next = 0;
  while (next < units_.size()) {
    // An equal share of the rest for every rank, if that is less than a slot.
    const uint64_t share = smaller(result_bytes_, ceil_div(left, static_cast<uint64_t>(size_)));
    Filling filling;
    for (int owner = 0; owner < size_; ++owner) {
      filling.result = filling.norms = 0;
      while (next < units_.size() && filling.result + filling.norms < share &&
             put(units_[next], filling)) {
        ++next;
      }
      left -= filling.result + filling.norms;
      cuts_.push_back(next);
    }
    ++blocks_;
  }
}

void GradientList::deal_to_owners() {
  const auto size = static_cast<size_t>(size_);
  std::vector<std::vector<GradientUnit>> queues(size);
  std::vector<uint64_t> left(size, 0);
  for (const GradientUnit& unit : units_) {
    const auto owner = static_cast<size_t>(owner_of(unit));
    queues[owner].push_back(unit);
    left[owner] += slot_bytes_of(unit);
  }
  std::vector<size_t> next(size, 0);
  const uint64_t total = units_.size();
  units_.clear();
  while (units_.size() < total) {
    // The rank with most of them fills its slots, the others spread theirs over as many blocks.
    const uint64_t more = ceil_div(*std::max_element(left.begin(), left.end()), result_bytes_);
    Filling filling;
    for (size_t owner = 0; owner < size; ++owner) {
      filling.result = filling.norms = 0;
      const uint64_t share = ceil_div(left[owner], more);
      for (size_t& k = next[owner];
           k < queues[owner].size() && filling.result + filling.norms < share; ++k) {
        if (!put(queues[owner][k], filling)) break;
        units_.push_back(queues[owner][k]);
      }
      left[owner] -= filling.result + filling.norms;
      cuts_.push_back(static_cast<uint32_t>(units_.size()));
    }
    ++blocks_;
  }
}

int GradientList::owner_of(const GradientUnit& unit) const {
  if (!sharded(unit)) return std::max(tensor_of(unit).owner, 0);
  const ShardOffsets& offsets = shards_[unit.tensor];
  return static_cast<int>(std::upper_bound(offsets.begin() + 1, offsets.end() - 1, unit.first) -
                          offsets.begin()) -
         1;
}

Span GradientList::wanted(const GradientUnit& unit, int rank) const {
  const ShardOffsets& offsets = shards_[unit.tensor];
  const uint64_t end = smaller(offsets[static_cast<size_t>(rank) + 1], unit.first + unit.count);
  const uint64_t begin = std::max(offsets[static_cast<size_t>(rank)], unit.first);
  return begin < end ? Span{begin - unit.first, end - begin} : Span{0, 0};
}

uint32_t GradientList::run_from(uint32_t first, uint32_t end, uint64_t& elements) const {
  uint32_t last = first;
  while (last + 1 < end && units_[last + 1].tensor == units_[first].tensor) ++last;
  elements = units_[last].first + units_[last].count - units_[first].first;
  return last + 1;
}

std::vector<double> GradientList::parts() const {
  std::vector<double> result;
  const BlockNorm* norms = norms_.data();
  for (const Gradient& tensor : tensors_) {
    const auto blocks = static_cast<uint32_t>(ceil_div(tensor.count, kNormBlock));
    result.push_back(joined(spec_.norm, blocks, [&](uint32_t i) { return norms[i].part; }));
    norms += blocks;
  }
  return result;
}

bool GradientList::finite() const {
  return std::all_of(norms_.begin(), norms_.end(), [](const BlockNorm& n) { return n.finite; });
}

std::vector<Gradient> shards_apart(const std::vector<Gradient>& tensors,
                                   const std::vector<ShardOffsets>& offsets) {
  std::vector<Gradient> shards;
  for (size_t t = 0; t < offsets.size(); ++t) {
    for (size_t owner = 0; owner + 1 < offsets[t].size(); ++owner) {
      Gradient shard = tensors[t];
      shard.data += offsets[t][owner] * dtype_size(shard.dtype);
      shard.count = offsets[t][owner + 1] - offsets[t][owner];
      shard.wire = shard.dtype;
      shard.owner = static_cast<int>(owner);
      shards.push_back(shard);
    }
  }
  return shards;
}

double norm_of_parts(const double* parts, size_t count, NormKind kind) {
  const auto number = static_cast<uint32_t>(count);
  return norm_of_sum(kind, joined(kind, number, [&](uint32_t i) { return parts[i]; }));
}

}  // namespace fastcomm
