// Sums packs over n sources in one thread, for the batched kernels and short operations.
//
// n is a constant, or known at run time up to the width of a tree. Either way the order is that of
// the fixed tree of core/numeric.h: a tree over a power of two of leaves, of which the last may be
// absent, whose left side then passes up. All loads of up to eight sources, for all packs that are
// summed at once, are issued before the first sum; for a constant n, the comparisons vanish. A pack
// of a source that is not aligned to packs is cut out of the two that contain it.
//
// Memory ordering: none of its own. A thread reads a position of every source before it writes it.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

constexpr int kMaxTreeSources = 16;  // of a tree whose n is known at run time
constexpr int kLeavesInFlight = 8;

/// Width of the tree for n sources: n rounded up to a power of two.
FC_HD constexpr int tree_width(int n) { return n == 1 ? 1 : 2 * tree_left(n); }

/// Elements of T in a Raw: a pack (uint4), or T itself for single elements.
template <class T, class Raw>
constexpr int kLanes = static_cast<int>(sizeof(Raw) / sizeof(T));

/// Stores one or several Raws of T. With kAnyhow `to` may not be aligned to a Raw: then elements go
/// one by one.
template <bool kAnyhow, class T, class Raw, int kRaws>
FC_DEVICE void store_raws(char* to, const Raw (&raws)[kRaws]) {
  if (kAnyhow && address_of(to) % sizeof(Raw) != 0) {
    constexpr int kElements = kRaws * kLanes<T, Raw>;
    T elements[kElements];
    memcpy(elements, raws, sizeof(elements));
    FC_UNROLL
    for (int e = 0; e < kElements; ++e) reinterpret_cast<T*>(to)[e] = elements[e];
    return;
  }
  FC_UNROLL
  for (int part = 0; part < kRaws; ++part) reinterpret_cast<Raw*>(to)[part] = raws[part];
}

template <class T, int kCount>
struct Lanes {
  typename Numeric<T>::Acc acc[kCount];
};

/// The tree over kWidth leaves raw[kFirst], ...; those from `n` on are absent, kFirst is present.
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

/// A Raw by one load.
template <class Raw_>
struct PlainLoad {
  using Raw = Raw_;
  using Fetched = Raw;
  static constexpr bool kShifts = false;
  FC_DEVICE static Fetched fetch(const char* from) { return *reinterpret_cast<const Raw*>(from); }
};

/// A pack by two loads; by one if it is aligned, so that only the pack itself is read.
struct ShiftedLoad {
  using Raw = uint4;
  struct Fetched {
    uint4 low, high;
  };
  static constexpr bool kShifts = true;
  FC_DEVICE static uint32_t shift(const char* from) {
    return static_cast<uint32_t>(address_of(from) % kPackBytes);
  }
  FC_DEVICE static Fetched fetch(const char* from) {
    const uint4* const packs = reinterpret_cast<const uint4*>(from - shift(from));
    Fetched fetched{packs[0], {}};
    if (shift(from) != 0) fetched.high = packs[1];
    return fetched;
  }
  FC_DEVICE static Raw raw(const Fetched& fetched, const char* from) {
    return pack_at(fetched.low, fetched.high, shift(from));
  }
};

/// sums[k] = the tree over the memory at from(first, k), ..., from(first + n - 1, k), n <= kWidth.
/// If active(k) is false, nothing is loaded, and zeros are summed.
template <class T, class Load, int kWidth, int kMany, class Active, class From>
FC_DEVICE void sum_sources(int first, int n, const Active& active, const From& from,
                           Lanes<T, kLanes<T, typename Load::Raw>> (&sums)[kMany]) {
  if constexpr (kWidth <= kLeavesInFlight) {
    typename Load::Fetched fetched[kMany][kWidth] = {};
    FC_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      if (j >= n) continue;
      FC_UNROLL
      for (int k = 0; k < kMany; ++k) {
        if (active(k)) fetched[k][j] = Load::fetch(from(first + j, k));
      }
    }
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      typename Load::Raw raw[kWidth] = {};
      FC_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        if constexpr (Load::kShifts) {
          if (j < n && active(k)) raw[j] = Load::raw(fetched[k][j], from(first + j, k));
        } else {
          raw[j] = fetched[k][j];
        }
      }
      sums[k] = sum_leaves<T, 0, kWidth>(raw, n);
    }
  } else {
    static_assert(kWidth == 2 * kLeavesInFlight, "two halves at most");
    // A loop, even if of one or two rounds: unrolled, it would keep the addresses of all sources in
    // registers, more than there are.
    FC_NO_UNROLL
    for (int half = 0; half < n; half += kLeavesInFlight) {
      const int rest = n - half < kLeavesInFlight ? n - half : kLeavesInFlight;
      Lanes<T, kLanes<T, typename Load::Raw>> parts[kMany];
      sum_sources<T, Load, kLeavesInFlight>(first + half, rest, active, from, parts);
      FC_UNROLL
      for (int k = 0; k < kMany; ++k) {
        FC_UNROLL
        for (int e = 0; e < kLanes<T, typename Load::Raw>; ++e) {
          sums[k].acc[e] =
              half == 0 ? parts[k].acc[e] : Numeric<T>::add(sums[k].acc[e], parts[k].acc[e]);
        }
      }
    }
  }
}

}  // namespace fastcomm
