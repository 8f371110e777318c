// A list of gradients for a fused reduction: cut into units, which are dealt to blocks and ranks,
// and the results.
//
//   unit    at most kNormBlock elements of one tensor, counted from its first: one norm is computed
//           of it, and one rank reduces it. So the bits of a norm depend on the tensor alone
//   block   consecutive units, dealt to the ranks as consecutive slices, so that each slice fits a
//           result slot and all of them a stage slot
//   shard   the elements of a tensor that one rank owns, if a list is sharded. Then a unit is dealt
//           to the owner of its first element, and a block has the next units of every rank
//
// Pure arithmetic, and equal on ranks with equal lists: offsets count in wire types and lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coll/plan.h"
#include "core/types.h"
#include "kernels/gradient_cpu.h"
#include "transport/peer_view.h"

namespace fastcomm {

struct Gradient {
  char* data;                 // dense; the same order of elements on every rank
  uint64_t count;             // elements
  DType dtype;                // a floating-point type
  DType wire;                 // type that travels: the same, or fp16 or bf16 for fp32
  float* residual = nullptr;  // `count` elements: rounding errors of another wire type so far
  int owner = -1;             // the rank that owns all of it, for gather_shards
};

/// Rank r owns the elements from offsets[r] to offsets[r + 1] of a tensor. Empty: all ranks want
/// all of it.
using ShardOffsets = std::vector<uint64_t>;

struct GradientSpec {
  bool average = true;
  double unscale = 1;  // a factor
  NormKind norm = NormKind::kTwo;
};

/// True if every unit of a tensor of `count` elements fits a result slot of such a group.
bool units_fit(uint64_t count, DType wire, const ScratchLayout& layout, int size);

struct GradientUnit {
  uint32_t tensor;
  uint32_t count;   // elements
  uint64_t first;   // of the tensor's elements
  uint32_t stage;   // bytes from the start of its block's stage slot
  uint32_t result;  // bytes from the start of its owner's result slot
  uint32_t place;   // among all units, by tensor and first element
};

class GradientList {
 public:
  /// Raises Error(kUnsupported) for a type that is not floating-point, or a wire type that does not
  /// fit.
  GradientList(std::vector<Gradient> tensors, const GradientSpec& spec);

  /// Deals the list to owners, by offsets for every tensor. Must come before deal().
  void shard(std::vector<ShardOffsets> offsets) { shards_ = std::move(offsets); }

  /// Deals the units to blocks and ranks. Called once, before the functions below.
  void deal(const ScratchLayout& layout, int size);

  const GradientSpec& spec() const { return spec_; }
  const std::vector<Gradient>& tensors() const { return tensors_; }
  uint64_t elements() const;
  uint64_t blocks() const { return blocks_; }
  /// The units of rank `owner` in block `b`: [begin, end) of units().
  uint32_t begin(uint64_t b, int owner) const { return cuts_[b * size_ + owner]; }
  uint32_t end(uint64_t b, int owner) const { return cuts_[b * size_ + owner + 1]; }
  uint32_t units() const { return static_cast<uint32_t>(units_.size()); }
  const GradientUnit& unit(uint32_t index) const { return units_[index]; }
  /// Calls `visit(u)` for the units of a rank, in order.
  template <class Visit>
  void for_units_of(int owner, const Visit& visit) const {
    for (uint64_t b = 0; b < blocks_; ++b) {
      for (uint32_t u = begin(b, owner); u < end(b, owner); ++u) visit(u);
    }
  }
  /// True if its tensor has owners.
  bool sharded(const GradientUnit& unit) const {
    return !shards_.empty() && !shards_[unit.tensor].empty();
  }
  /// The part of a unit that `rank` needs if its tensor has owners; counts from the unit's first
  /// element.
  Span wanted(const GradientUnit& unit, int rank) const;
  const Gradient& tensor_of(const GradientUnit& unit) const { return tensors_[unit.tensor]; }
  char* data_of(const GradientUnit& unit) const {
    const Gradient& tensor = tensors_[unit.tensor];
    return tensor.data + unit.first * dtype_size(tensor.dtype);
  }
  uint64_t wire_bytes(const GradientUnit& unit) const {
    return unit.count * dtype_size(tensors_[unit.tensor].wire);
  }

  /// Bytes of a rank's slots, from stage_at(0) on.
  uint64_t slot_bytes() const { return 2 * (stage_bytes_ + result_bytes_); }
  /// Place of the slots of a parity in a rank's scratch.
  uint64_t stage_at(uint64_t parity) const { return origin_ + (parity & 1) * stage_bytes_; }
  uint64_t result_at(uint64_t parity) const {
    return origin_ + 2 * stage_bytes_ + (parity & 1) * result_bytes_;
  }

  /// Place of the norm of the owner's k-th unit in a result slot: counted from the end.
  uint64_t norm_at(uint32_t k) const { return result_bytes_ - (k + 1) * sizeof(BlockNorm); }

  /// The run of units from `first` on, before `end`, that belong to one tensor and are full except
  /// for the last: they lie end to end in the tensor, and in a slot. Returns the run's end, and
  /// counts its elements.
  uint32_t run_from(uint32_t first, uint32_t end, uint64_t& elements) const;

  /// Notes the norm of a unit.
  void note(uint32_t index, const BlockNorm& norm) { norms_[units_[index].place] = norm; }
  /// The sum over the units of each tensor (kInfinity: the largest), in the order in which
  /// kernels/norm.h joins blocks. Counts all units noted.
  std::vector<double> parts() const;
  bool finite() const;

 private:
  /// Contents of the slots of a block so far.
  struct Filling {
    uint64_t stage = 0, result = 0, norms = 0;
  };
  uint64_t slot_bytes_of(const GradientUnit& unit) const;
  /// Puts a unit into the slots of its block, if there is room.
  bool put(GradientUnit& unit, Filling& filling) const;
  void deal_evenly();
  void deal_to_owners();
  int owner_of(const GradientUnit& unit) const;

  std::vector<Gradient> tensors_;
  GradientSpec spec_;
  std::vector<GradientUnit> units_;
  std::vector<BlockNorm> norms_;      // by place
  std::vector<ShardOffsets> shards_;  // of the tensors; empty: no list of owners
  std::vector<uint32_t> cuts_;        // blocks * size + 1
  uint64_t blocks_ = 0;
  int size_ = 1;
  uint64_t origin_ = 0, stage_bytes_ = 0, result_bytes_ = 0;
};

/// Every rank's shard of every tensor as a tensor of its own, for gather_shards. Tensors without
/// offsets are left out.
std::vector<Gradient> shards_apart(const std::vector<Gradient>& tensors,
                                   const std::vector<ShardOffsets>& offsets);

/// The norm of a whole list from its tensors' parts, in the order of kernels/norm.h; NaN if a part
/// is.
double norm_of_parts(const double* parts, size_t count, NormKind kind);

}  // namespace fastcomm
