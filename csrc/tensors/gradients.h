// Tensors as the list of gradients of a fused reduction.
//
// A dense tensor is taken in the order of its memory, with any strides; a complex one as pairs of
// reals. A tensor with gaps, or in another place than it is reduced, gets a stand-in, which is
// copied back. Results are three tensors, in the place of the reduction:
//
//   total_norm  0-d, fp32, or fp64 if a gradient is: the norm of all of them; zero for
//               NormKind::kNone
//   found_inf   0-d, fp32: 1 if any element is infinite or NaN, else 0
//   parts       1-d, fp64: of each tensor the sum of squares (kTwo), of magnitudes (kOne), or the
//               largest magnitude (kInfinity)
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
  std::vector<ShardOffsets> shards;    // one per tensor, or none at all: no rank owns anything
  TensorList residuals;                // of error feedback: one per tensor, like it, or none at all
};

/// True if the units of such a list fit the slots of a group of `size` ranks. For gather_shards,
/// units of whole tensors stand for those of shards, which may be smaller.
bool fits_slots(at::TensorList tensors, const GradientOptions& options, const ScratchLayout& layout,
                int size);

class GradientTensors {
 public:
  /// A list that is reduced on `device`; tensors of any device may be reduced on the CPU. Raises
  /// Error(kInvalidArgument) with the name of a tensor that is on another device; sparse, or
  /// quantized; not floating-point; overlaps itself or another one; or has an unsupported wire
  /// type; shards with gaps in the tensor, or wrong offsets; a residual that is not fp32 or has
  /// another layout.
  GradientTensors(TensorList tensors, const GradientOptions& options, at::Device device = at::kCPU);

  const std::vector<Gradient>& gradients() const { return gradients_; }
  /// The same as tensors, stand-ins among them; complex ones as pairs.
  const TensorList& dense() const { return dense_; }
  /// The list, for gradients on the CPU.
  const std::shared_ptr<GradientList>& list() const { return list_; }
  /// Copies stand-ins back to the gradients and their residuals.
  void write_back() const;
  /// Writes the results of the list.
  void write_results(const TensorList& results) const;
  /// A hash of shapes, orders of elements, types and options, which must be equal on all ranks.
  uint64_t signature() const;
  /// The same in words; long texts are cut off.
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

/// Raises Error(kInvalidArgument) unless each divided tensor has an offset per rank, and one more.
void check_offsets(const std::vector<ShardOffsets>& shards, int size);

/// Three tensors for results, as above.
TensorList make_gradient_results(const TensorList& gradients, at::Device device = at::kCPU);

}  // namespace fastcomm
