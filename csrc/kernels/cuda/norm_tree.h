// Joins parts of a norm by the threads of a block, in the order of kernels/norm.h.
//
// Each thread has a leaf in shared memory: a column of a block, or a few neighbours that the thread
// has joined. A few threads join as many leaves each, and thread 0 their results. Cost of a tree:
// two barriers, and 15 additions twice, of which 4 wait for each other.
//
// Memory ordering: barriers. Leaves are written before they are joined, and branches before thread
// 0 joins them. Another tree may be started after root(): nobody reads the leaves any more, and
// branches are written after a barrier that thread 0 reaches once it has read them.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda_api.h"
#include "kernels/norm.h"

namespace fastcomm {

/// A barrier of the thread block; returns true if all of its threads pass true.
FC_DEVICE bool all_agree(bool yes) { return __syncthreads_and(yes) != 0; }

/// Memory that a thread block shares for a tree, and its joins.
class NormTree {
 public:
  static constexpr uint32_t kLeaves = 256;
  static constexpr uint32_t kBranches = 16;
  static constexpr uint32_t kOfBranch = kLeaves / kBranches;
  static constexpr uint32_t kPlaces = kLeaves + kLeaves / 8 + kBranches;

  /// `memory` is shared, of kPlaces.
  explicit FC_DEVICE NormTree(double* memory)
      : leaves_(memory), branches_(memory + kLeaves + kLeaves / 8) {}

  FC_DEVICE void set(uint32_t leaf, double part) const { leaves_[place(leaf)] = part; }

  /// All leaves joined, for thread 0.
  template <class Join>
  FC_DEVICE double root() const {
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < kBranches; b += kTableThreads) {
      branches_[b] =
          joined<Join, kOfBranch>([&](uint32_t i) { return leaves_[place(b * kOfBranch + i)]; });
    }
    __syncthreads();
    if (threadIdx.x != 0) return 0;
    return joined<Join, kBranches>([&](uint32_t i) { return branches_[i]; });
  }

  FC_DEVICE double root(NormKind kind) const {
    return kind == NormKind::kInfinity ? root<JoinLargest>() : root<JoinSums>();
  }

  /// The tree over load(0), ..., load(kCount - 1), a power of two.
  template <class Join, uint32_t kCount, class Load>
  static FC_DEVICE double joined(const Load& load) {
    double parts[kCount];
    FC_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) parts[i] = load(i);
    FC_UNROLL
    for (uint32_t width = 1; width < kCount; width *= 2) {
      FC_UNROLL
      for (uint32_t i = 0; i < kCount; i += 2 * width) {
        parts[i] = Join::combine(parts[i], parts[i + width]);
      }
    }
    return parts[0];
  }

 private:
  /// One place is skipped per eight leaves: threads that write every eighth do not meet in a bank.
  static FC_DEVICE uint32_t place(uint32_t leaf) { return leaf + leaf / 8; }

  double* leaves_;
  double* branches_;
};

}  // namespace fastcomm
