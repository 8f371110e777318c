// The second half of a norm on CUDA: joins the norms of blocks, which multi_gradient's kernels
// leave in the device's memory, to those of tensors and of the list, in the order of
// kernels/norm.h.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/cuda_api.h"
#include "kernels/norm.h"

namespace fastcomm {

/// Memory of the device in which kernels leave notes for later kernels.
struct NormNotes {
  BlockNorm* blocks;    // of the list's blocks
  BlockNorm* segments;  // of the list's segments
  uint32_t* first_of;   // for each segment its first block
};

/// Bytes of notes, and their places in `memory`, which is aligned to BlockNorm.
uint64_t norm_notes_bytes(uint64_t blocks, int segments);
NormNotes norm_notes_at(void* memory, uint64_t blocks, int segments);

/// In memory of the device.
struct NormResults {
  double* parts;     // one per segment: its blocks, joined
  void* total;       // the norm of all segments
  DType total_type;  // float32 or float64
  float* found_inf;  // 1 if an element is infinite or NaN, else 0
};

/// Enqueues the kernels that compute the results from notes on all blocks. Raises Error(kSystem).
void launch_gradient_norm(const NormNotes& notes, uint32_t blocks, int segments, NormKind kind,
                          const NormResults& results, cudaStream_t stream);

/// Loads the kernels (load_multi_copy).
void load_gradient_norm();

/// The norm of parts that already exist.
void launch_norm_of_parts(const double* parts, int count, NormKind kind, double* total,
                          cudaStream_t stream);

}  // namespace fastcomm
