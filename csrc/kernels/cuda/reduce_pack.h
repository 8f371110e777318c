// How one thread sums a pack over n sources, shared by the executor and the batched reduction.
//
// n is a constant, or known at run time up to the width of a tree. Either way the order is that of
// the fixed tree of core/numeric.h: a tree over a power of two of leaves, of which the last may be
// absent, whose left side then passes up. All loads of up to eight sources are issued before the
// first sum; where n is a constant, nothing is left of the comparisons.
//
// Memory ordering: none of its own. A thread reads a position of every source before it writes it.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

constexpr int kMaxTreeSources = 16;  // of a tree whose n is known at run time
constexpr int kLeavesInFlight = 8;

/// What n sources are summed with: the width of the tree, n rounded up to a power of two.
FC_HD constexpr int tree_width(int n) { return n == 1 ? 1 : 2 * tree_left(n); }

/// Elements of T in a Raw: a pack (uint4), or T itself for single elements.
template <class T, class Raw>
constexpr int kLanes = static_cast<int>(sizeof(Raw) / sizeof(T));

template <class T, int kCount>
struct Lanes {
  typename Numeric<T>::Acc acc[kCount];
};

/// The tree over raw[kFirst], ..., of kWidth leaves, those from `n` on absent; kFirst is present.
template <class T, int kFirst, int kWidth, class Raw, int kSize>
FC_DEVICE Lanes<T, kLanes<T, Raw>> sum_leaves(const Raw (&raw)[kSize], int n) {
  Lanes<T, kLanes<T, Raw>> sum;
  if constexpr (kWidth == 1) {
    T values[kLanes<T, Raw>];
    memcpy(values, &raw[kFirst], sizeof(Raw));
    FC_UNROLL
    for (int e = 0; e < kLanes<T, Raw>; ++e) sum.acc[e] = Numeric<T>::load(values[e]);
  } else {
    sum = sum_leaves<T, kFirst, kWidth / 2>(raw, n);
    if (kFirst + kWidth / 2 < n) {
      const auto right = sum_leaves<T, kFirst + kWidth / 2, kWidth / 2>(raw, n);
      FC_UNROLL
      for (int e = 0; e < kLanes<T, Raw>; ++e) {
        sum.acc[e] = Numeric<T>::add(sum.acc[e], right.acc[e]);
      }
    }
  }
  return sum;
}

/// The tree over load(first), ..., load(first + n - 1), n <= kWidth, of which each is a Raw. Nothing
/// is loaded, and zeros are summed, unless `active`: so the loads of several packs can be in flight
/// at once.
template <class T, class Raw, int kWidth, class Load>
FC_DEVICE Lanes<T, kLanes<T, Raw>> sum_sources(int first, int n, bool active, const Load& load) {
  if constexpr (kWidth <= kLeavesInFlight) {
    Raw raw[kWidth] = {};
    FC_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      if (active && j < n) raw[j] = load(first + j);
    }
    return sum_leaves<T, 0, kWidth>(raw, n);
  } else {
    static_assert(kWidth == 2 * kLeavesInFlight, "two halves at most");
    constexpr int kHalf = kLeavesInFlight;
    if (n <= kHalf) return sum_sources<T, Raw, kHalf>(first, n, active, load);
    auto sum = sum_sources<T, Raw, kHalf>(first, kHalf, active, load);
    const auto right = sum_sources<T, Raw, kHalf>(first + kHalf, n - kHalf, active, load);
    FC_UNROLL
    for (int e = 0; e < kLanes<T, Raw>; ++e) {
      sum.acc[e] = Numeric<T>::add(sum.acc[e], right.acc[e]);
    }
    return sum;
  }
}

}  // namespace fastcomm
