// Tensors as the list of gradients that a fused reduction works on.
//
// A dense tensor is taken as its memory lies, whatever its strides; a complex one as pairs of reals. A tensor
// with gaps, or elsewhere than it is reduced, gets a stand-in, which is copied back. Results are three tensors,
// where the gradients are reduced:
//
//   total_norm  0-d, fp32, or fp64 if a gradient is: the norm of all of them; zero for NormKind::kNone
//   found_inf   0-d, fp32: 1 if any element is infinite or NaN, else 0
//   parts       1-d, fp64: of each tensor the sum of squares (kTwo), of magnitudes (kOne), or the largest
//               magnitude (kInfinity)
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/gradient_list.h"
#include "tensors/plain_tensors.h"

namespace fastcomm {

struct GradientOptions {
  GradientSpec spec;
  std::optional<at::ScalarType> wire;  // fp16 or bf16, for the gradients that are fp32
  std::vector<ShardOffsets> shards;    // one a tensor, or none at all: no rank owns anything
  TensorList residuals;                // one a tensor, like it, or none at all: of error feedback
};

/// Whether the units of such a list fit the slots of a group of `size` ranks. For gather_shards, units of whole tensors
/// stand for those of shards, which may be smaller.
bool fits_slots(at::TensorList tensors, const GradientOptions& options, const ScratchLayout& layout,
                int size);

class GradientTensors {
 public:
  /// Reduced on `device`; on the CPU tensors of any device may be. Raises Error(kInvalidArgument), which names
  /// the tensor: not on another device; sparse, or quantized; not floating-point; overlaps itself or another one; an unsupported wire type; shards of a tensor with gaps,
  /// or that are not offsets of it; a residual that is not fp32 or has another layout.
  GradientTensors(TensorList tensors, const GradientOptions& options, at::Device device = at::kCPU);

  const std::vector<Gradient>& gradients() const { return gradients_; }
  /// The same as tensors, stand-ins among them; complex ones as pairs.
  const TensorList& dense() const { return dense_; }
  /// The list, for gradients on the CPU.
  const std::shared_ptr<GradientList>& list() const { return list_; }
  /// Copies stand-ins to where the gradients and their residuals live.
  void write_back() const;
  /// Writes what the list found out.
  void write_results(const TensorList& results) const;
  /// A hash of shapes, orders of elements, types and options: what must be equal on all ranks.
  uint64_t signature() const;
  /// The same in words, cut off where it gets long.
  std::string describe() const;

 private:
  void add_residual(size_t index, Gradient& gradient);
  void check_shards(size_t index) const;

  TensorList users_;
  TensorList dense_;
  TensorList residuals_;  // as pairs; stand-ins among them
  GradientOptions options_;
  std::vector<Gradient> gradients_;
  std::shared_ptr<GradientList> list_;
};

/// Raises Error(kInvalidArgument) unless each divided tensor has an offset for each rank, and one more.
void check_offsets(const std::vector<ShardOffsets>& shards, int size);

/// Three tensors for results, as above.
TensorList make_gradient_results(const TensorList& gradients, at::Device device = at::kCPU);

}  // namespace fastcomm
