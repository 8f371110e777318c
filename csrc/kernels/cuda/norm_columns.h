// The columns of a block of elements (kernels/norm.h) by a thread block: the first half of a norm,
// before the tree of kernels/cuda/norm_tree.h.
//
// A thread takes a column, and neighbouring threads take neighbouring lanes: a warp reads 32
// neighbours at once, from different banks of shared memory or from whole sectors elsewhere. All
// loads of a column are issued before the first addition.
//
// Memory ordering: none of its own. What is loaded was written before a barrier or by an earlier
// kernel of the stream; leaves are read after a barrier (NormTree::root).
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/norm_tree.h"
#include "kernels/cuda_api.h"
#include "kernels/norm.h"

namespace fastcomm {

/// A thread's columns of a block of elements.
template <class T>
class NormColumns {
 public:
  /// From a block of `count` elements in any memory; those that it lacks are zeros.
  FC_DEVICE void load(const T* values, uint32_t count) {
    static_assert(kNormColumns == NormTree::kLeaves, "a leaf a column");
    FC_UNROLL
    for (uint32_t c = 0; c < kOfThread; ++c) {
      const uint32_t first = piece(c) * kNormPiece + lane(c);
      if (count == kNormBlock) {
        FC_UNROLL
        for (uint32_t row = 0; row < kNormRows; ++row) {
          values_[c][row] = values[first + row * kNormLanes];
        }
      } else {
        FC_UNROLL
        for (uint32_t row = 0; row < kNormRows; ++row) {
          const uint32_t i = first + row * kNormLanes;
          values_[c][row] = i < count ? values[i] : T{};
        }
      }
    }
  }

  /// The sums over columns become leaves.
  FC_DEVICE void sum(NormKind kind, const NormTree& tree) const {
    switch (kind) {
      case NormKind::kOne:
        return sum<NormKind::kOne>(tree);
      case NormKind::kTwo:
        return sum<NormKind::kTwo>(tree);
      default:
        return sum<NormKind::kInfinity>(tree);
    }
  }

 private:
  static constexpr uint32_t kOfThread = kNormColumns / kTableThreads;

  static FC_DEVICE uint32_t column(uint32_t c) { return threadIdx.x + c * kTableThreads; }
  static FC_DEVICE uint32_t piece(uint32_t c) { return column(c) / kNormLanes; }
  static FC_DEVICE uint32_t lane(uint32_t c) { return column(c) % kNormLanes; }

  template <NormKind kKind>
  FC_DEVICE void sum(const NormTree& tree) const {
    FC_UNROLL
    for (uint32_t c = 0; c < kOfThread; ++c) {
      double sum = 0;
      FC_UNROLL
      for (uint32_t row = 0; row < kNormRows; ++row) {
        const double value = Numeric<T>::load(values_[c][row]);
        sum = kKind == NormKind::kInfinity ? larger(sum, fabs(value))
                                           : add_term<T, kKind>(sum, value);
      }
      tree.set(lane(c) * kNormPieces + piece(c), sum);
    }
  }

  T values_[kOfThread][kNormRows];
};

}  // namespace fastcomm
