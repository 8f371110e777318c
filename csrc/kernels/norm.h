// Parts and order of a norm of gradients, the same for the CPU and for CUDA, which give the same
// bits.
//
// All sums are in fp64, where the square of an fp32 is exact. Their order is fixed by the list
// alone: not by ranks, owners, threads, vectors, or the number of calls.
//
//   tensor  blocks of kNormBlock elements, counted from its first
//   block   pieces of kNormPiece elements; element i of a piece lies in lane i mod kNormLanes
//   column  a lane of a piece: its kNormRows elements, summed in order
//
// Three kinds of parts are joined by the fixed tree of core/numeric.h (neighbours, then pairs of
// pairs; an odd one passes up): the columns of a block, those of the first lane before those of the
// second; the blocks of a tensor; and the tensors of a list. A last block is filled up with zeros:
// no part is negative, so they change nothing, and any number of leaves may be added.
//
// The reasons: the CPU adds a row of lanes by vectors of any width, and pieces as they come out of
// the cache; a CUDA thread takes one column, so that no chain of additions is long; and a tree may
// be cut among any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numeric.h"

namespace fastcomm {

enum class NormKind : uint8_t { kNone = 0, kOne = 1, kTwo = 2, kInfinity = 3 };

// These sizes are part of the order that fixes the bits. A block is the longest run whose norm is
// computed as a whole.
constexpr size_t kNormBlock = 4096;
constexpr size_t kNormPiece = 512;
constexpr size_t kNormLanes = 32;
constexpr size_t kNormRows = kNormPiece / kNormLanes;
constexpr size_t kNormPieces = kNormBlock / kNormPiece;
constexpr size_t kNormColumns = kNormPieces * kNormLanes;

struct alignas(16) BlockNorm {  // a device moves it by one access
  double part = 0;  // the sum of magnitudes or of squares, or the largest magnitude; NaN if any is
  bool finite = true;  // true if all elements are
};

/// The larger one; NaN wins.
FC_HD double larger(double a, double b) { return a != a ? a : b > a || b != b ? b : a; }

/// Adds an element's term to a sum, for kOne and kTwo. The square of an fp32 is exact in fp64, so a
/// fused multiply-add rounds like a sum.
template <class T, NormKind kKind>
FC_HD double add_term(double sum, double value) {
  if constexpr (kKind != NormKind::kTwo) {
    return add_rn(sum, fabs(value));
  } else if constexpr (sizeof(typename Numeric<T>::Acc) > sizeof(float)) {
    return add_rn(sum, mul_rn(value, value));
  } else {
    return fma_rn(value, value, sum);
  }
}

/// True if a finite part means finite elements: sums of fp32 and of their squares stay within the
/// range of fp64.
template <class T>
FC_HD bool part_tells(NormKind kind) {
  return kind != NormKind::kNone && sizeof(typename Numeric<T>::Acc) <= sizeof(float);
}

/// Joins two parts, for the tree of core/numeric.h; zero changes nothing.
struct JoinSums {
  using Acc = double;
  static FC_HD double combine(double part, double other) { return add_rn(part, other); }
};
struct JoinLargest {
  using Acc = double;
  static FC_HD double combine(double part, double other) { return larger(part, other); }
};

/// The fixed tree over parts that come one after another.
template <class Join>
class PartsTree {
 public:
  static constexpr int kLevels = 33;  // of up to 2^32 parts

  /// `waiting` is memory of the caller for kLevels parts.
  explicit FC_HD PartsTree(double* waiting) : waiting_(waiting) {}

  FC_HD void add(double part) {
    int level = 0;
    for (uint32_t n = count_++; n % 2 == 1; n /= 2) part = Join::combine(waiting_[level++], part);
    waiting_[level] = part;
  }
  FC_HD double total() const {
    double sum = 0;
    int level = 0;
    for (uint32_t n = count_; n != 0; n /= 2, ++level) {
      if (n % 2 == 1) sum = Join::combine(waiting_[level], sum);
    }
    return sum;
  }

 private:
  double* waiting_;  // at the level of each bit of count_: 2^level parts, joined
  uint32_t count_ = 0;
};

/// The norm of a whole list from all its parts, joined.
FC_HD double norm_of_sum(NormKind kind, double sum) {
  return kind == NormKind::kTwo ? sqrt_rn(sum) : sum;
}

}  // namespace fastcomm
