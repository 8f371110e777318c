// Tensors as the list of gradients of a fused reduction.
//
// A dense tensor is taken in the order of its memory, with any strides; a complex one as pairs of
// reals. A tensor with gaps, or on another device than the reduction, gets a stand-in, which is
// copied back. Results are three tensors on the device of the reduction:
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
  std::vector<ShardOffsets> shards;    // one per tensor; none: no rank owns anything
  TensorList residuals;                // of error feedback: one per tensor, or none
};

/// True if the units of such a list fit the slots of a group of `size` ranks. For gather_shards,
/// units of whole tensors stand for those of shards, which may be smaller.
bool fits_slots(at::TensorList tensors, const GradientOptions& options, const ScratchLayout& layout,
                int size);

class GradientTensors {
 public:
  /// A list that is reduced on `device`; tensors of any device may be reduced on the CPU. Raises
  /// Error(kInvalidArgument) for an unsupported wire type, or for a tensor, with its index: it is
  /// on another device, not dense, or not of a floating-point type with a kernel; it overlaps
  /// itself or another one; it is complex, and the norm is not of kind kTwo or kNone; it is divided
  /// into shards, but has gaps or wrong offsets; its residual is lazy, not fp32, or of another
  /// device or layout.
  GradientTensors(TensorList tensors, const GradientOptions& options, at::Device device = at::kCPU);

  const std::vector<Gradient>& gradients() const { return gradients_; }
  /// The gradients as dense tensors, stand-ins among them; complex ones as pairs.
  const TensorList& dense() const { return dense_; }
  /// The list to reduce; nullptr unless `device` is the CPU.
  const std::shared_ptr<GradientList>& list() const { return list_; }
  /// Copies stand-ins back to the gradients and their residuals.
  void write_back() const;
  /// Writes the results of list() to tensors of make_gradient_results.
  void write_results(const TensorList& results) const;
  /// A hash of shapes, orders of elements, types and options, which must be equal on all ranks.
  uint64_t signature() const;
  /// Shapes, types and options in words; long texts are cut off.
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

/// The three tensors for results, not yet written.
TensorList make_gradient_results(const TensorList& gradients, at::Device device = at::kCPU);

}  // namespace fastcomm
