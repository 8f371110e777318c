// Combines packs over n sources in one thread, by any combination (kernels/combine.h), or by one of
// the sums below; n is known at run time.
//
// The order is that of the fixed tree of core/numeric.h: groups of kGroupLeaves sources; two groups
// make a half, and two halves the whole. All loads of a group are issued before its first
// combination. A thread takes one pack at a time: a kernel holds all reductions of its type, and
// takes the registers of the widest.
//
// Memory ordering: none of its own. A thread reads a position of every source before it writes it.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/combine.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_pack.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

constexpr int kGroupLeaves = 4;
static_assert(kMaxTreeSources <= 4 * kGroupLeaves, "two halves of two groups");

/// PREMUL_SUM.
template <class T>
struct Premultiplied {
  using Value = T;
  using Acc = typename Numeric<T>::Acc;
  double factor;
  FC_DEVICE explicit Premultiplied(double factor_) : factor(factor_) {}
  FC_DEVICE Acc load(T value) const { return Numeric<T>::scale(Numeric<T>::load(value), factor); }
  FC_DEVICE static Acc combine(Acc a, Acc b) { return Numeric<T>::add(a, b); }
  FC_DEVICE static T store(Acc acc) { return Numeric<T>::store(acc); }
};

/// SUM and AVG of integers.
template <class T>
struct Divided : Stored<T> {
  int divisor;
  FC_DEVICE explicit Divided(int divisor_) : divisor(divisor_) {}
  FC_DEVICE static T combine(T a, T b) { return Numeric<T>::add(a, b); }
  FC_DEVICE T store(T sum) const { return divisor == 1 ? sum : Numeric<T>::divide(sum, divisor); }
};

/// The accumulators of a Raw, packed in words: bytes would take a register each.
template <class Op, class Raw>
struct Partial {
  using T = typename Op::Value;
  using Acc = typename Op::Acc;
  static constexpr int kCount = kLanes<T, Raw>;
  static constexpr int kWords = (kCount * static_cast<int>(sizeof(Acc)) + 3) / 4;
  uint32_t words[kWords] = {};

  FC_DEVICE static Partial of(const Op& op, const Raw& raw) {
    T values[kCount];
    memcpy(values, &raw, sizeof(raw));
    Acc acc[kCount];
    FC_UNROLL
    for (int e = 0; e < kCount; ++e) acc[e] = op.load(values[e]);
    return packed(acc);
  }
  /// `right` holds higher ranks.
  FC_DEVICE void combine(const Partial& right) {
    Acc a[kCount], b[kCount];
    memcpy(a, words, sizeof(a));
    memcpy(b, right.words, sizeof(b));
    FC_UNROLL
    for (int e = 0; e < kCount; ++e) a[e] = Op::combine(a[e], b[e]);
    *this = packed(a);
  }
  FC_DEVICE Raw stored(const Op& op) const {
    Acc acc[kCount];
    memcpy(acc, words, sizeof(acc));
    T values[kCount];
    FC_UNROLL
    for (int e = 0; e < kCount; ++e) values[e] = op.store(acc[e]);
    Raw raw;
    memcpy(&raw, values, sizeof(raw));
    return raw;
  }

 private:
  FC_DEVICE static Partial packed(const Acc (&acc)[kCount]) {
    Partial made;
    memcpy(made.words, acc, sizeof(acc));
    return made;
  }
};

/// The tree over raw[0], ..., raw[n - 1], for n >= 1; larger n mean kGroupLeaves.
template <class Op, class Raw>
FC_DEVICE Partial<Op, Raw> combine_leaves(const Op& op, const Raw (&raw)[kGroupLeaves], int n) {
  auto left = Partial<Op, Raw>::of(op, raw[0]);
  if (n > 1) left.combine(Partial<Op, Raw>::of(op, raw[1]));
  if (n > 2) {
    auto right = Partial<Op, Raw>::of(op, raw[2]);
    if (n > 3) right.combine(Partial<Op, Raw>::of(op, raw[3]));
    left.combine(right);
  }
  return left;
}

/// Reduces the elements of a Raw, from the i-th on.
template <class Raw, class Op, class Worker>
FC_DEVICE void combine_raw(const Op& op, const Worker& worker, uint64_t i) {
  using T = typename Op::Value;
  const int n = worker.num_sources();
  // Groups of leaves, like the carries of a binary counter: two make a half, two halves the whole.
  Partial<Op, Raw> low, sum;
  FC_NO_UNROLL
  for (int group = 0; group < n; group += kGroupLeaves) {
    Raw raw[kGroupLeaves] = {};
    FC_UNROLL
    for (int j = 0; j < kGroupLeaves; ++j) {
      if (group + j < n) {
        raw[j] = *reinterpret_cast<const Raw*>(worker.source(group + j) + i * sizeof(T));
      }
    }
    const auto part = combine_leaves(op, raw, n - group);
    if (group % (2 * kGroupLeaves) == 0) {
      low = sum;
      sum = part;
    } else {
      sum.combine(part);
    }
  }
  if (n > 2 * kGroupLeaves) {
    low.combine(sum);
    sum = low;
  }
  const Raw result[] = {sum.stored(op)};
  FC_NO_UNROLL
  for (int d = 0; d < worker.table.terms.num_destinations; ++d) {
    store_raws<(sizeof(Raw) > sizeof(T)), T>(worker.destination(d) + i * sizeof(T), result);
  }
}

}  // namespace fastcomm
