// The table of a batched reduction, and what one thread does with a segment of it.
//
// A record holds a head, the sources, then the destinations; records of one launch have one length.
// Memory ordering: none of its own (kernels/cuda/multi_reduce.cu).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/hd.h"
#include "core/numeric.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_pack.h"

namespace fastcomm {

/// A record of the table: a head, then the sources, then the destinations.
struct SegmentHead {
  uint32_t first_chunk;  // of the launch
  uint16_t lead;    // elements from a pack to the segment's begin: chunks are counted from there
  uint16_t packed;  // 1: sources and destinations share an alignment
  uint64_t count;   // elements, more than 0
};
constexpr int kHeadWords = sizeof(SegmentHead) / sizeof(uint64_t);
static_assert(sizeof(SegmentHead) == kHeadWords * sizeof(uint64_t), "no padding");

template <int kWords>
struct ReduceTable {
  uint32_t chunks;
  int count;
  int num_sources;
  int num_destinations;
  int divisor;
  float scale_float;  // the scale in either accumulator
  double scale_double;
  uint64_t words[kWords];

  /// Words of a record.
  FC_HD int stride() const { return kHeadWords + num_sources + num_destinations; }
  FC_HD uint32_t first_chunk(int record) const {
    return static_cast<uint32_t>(words[record * stride()]);
  }
};
/// What a thread does at once. N: sources, 0 where their number is known at run time.
template <class In, class Out, int N>
struct Shape {
  static constexpr int kPackElements =
      kPackBytes / (sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out));
  static constexpr int kPacks = N == 0 || N > kPacksInFlight ? 1 : kPacksInFlight / N;
  static constexpr int kChunk = kTableThreads * kPacks * kPackElements;  // elements
};

/// sum / divisor * scale, each step rounded in the accumulator.
template <class In, class Table>
FC_DEVICE typename Numeric<In>::Acc epilogue(typename Numeric<In>::Acc sum, const Table& table) {
  using Acc = typename Numeric<In>::Acc;
  if (table.divisor != 1) sum = Numeric<In>::divide(sum, table.divisor);
  if constexpr (std::is_same<Acc, float>::value) {
    if (table.scale_float != 1) sum = mul_rn(sum, table.scale_float);
  } else if constexpr (std::is_same<Acc, double>::value) {
    if (table.scale_double != 1) sum = mul_rn(sum, table.scale_double);
  }
  return sum;
}

/// One thread's view of a segment.
template <class In, class Out, int N, class Table>
struct SegmentWorker {
  static constexpr int kWidth = N == 0 ? kMaxTreeSources : tree_width(N);

  const Table& table;
  int at;  // the record's first word

  FC_DEVICE int num_sources() const { return N == 0 ? table.num_sources : N; }
  FC_DEVICE const char* source(int j) const {
    return reinterpret_cast<const char*>(table.words[at + kHeadWords + j]);
  }
  FC_DEVICE char* destination(int d) const {
    return reinterpret_cast<char*>(table.words[at + kHeadWords + num_sources() + d]);
  }

  /// Reduces kMany groups of elements, each as one RawIn or several, `step` elements apart, those
  /// that begin below `end`. A group is as many elements as a RawOut or several hold.
  template <class RawIn, class RawOut, int kElements, int kMany>
  FC_DEVICE void reduce(uint64_t first, uint64_t step, uint64_t begin, uint64_t end) const {
    constexpr int kLanesIn = kLanes<In, RawIn>;
    constexpr int kLanesOut = kLanes<Out, RawOut>;
    Lanes<In, kLanesIn> sums[kMany][kElements / kLanesIn];
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      const uint64_t i = first + k * step;
      FC_UNROLL
      for (int part = 0; part < kElements / kLanesIn; ++part) {
        sums[k][part] =
            sum_sources<In, RawIn, kWidth>(0, num_sources(), i >= begin && i < end, [&](int j) {
              return reinterpret_cast<const RawIn*>(source(j) + i * sizeof(In))[part];
            });
      }
    }
    RawOut results[kMany][kElements / kLanesOut];
    FC_UNROLL
    for (int k = 0; k < kMany; ++k) {
      Out out[kElements];
      FC_UNROLL
      for (int e = 0; e < kElements; ++e) {
        out[e] = Numeric<Out>::store(epilogue<In>(sums[k][e / kLanesIn].acc[e % kLanesIn], table));
      }
      memcpy(results[k], out, sizeof(out));
    }
    for (int d = 0; d < table.num_destinations; ++d) {
      FC_UNROLL
      for (int k = 0; k < kMany; ++k) {
        const uint64_t i = first + k * step;
        FC_UNROLL
        for (int part = 0; part < kElements / kLanesOut; ++part) {
          if (i < begin || i >= end) continue;
          reinterpret_cast<RawOut*>(destination(d) + i * sizeof(Out))[part] = results[k][part];
        }
      }
    }
  }
};

}  // namespace fastcomm
