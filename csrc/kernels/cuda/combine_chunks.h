// A block's work on its chunks of a table of combinations. kernels/cuda/multi_combine.cu describes
// the layout of memory, and the reason why it needs no ordering.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/types.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/combine_pack.h"
#include "kernels/cuda/combine_spec.h"
#include "kernels/cuda/copy_block.h"
#include "kernels/cuda/reduce_table.h"

namespace fastcomm {

template <class T>
constexpr int kCombineElements = kPackBytes / static_cast<int>(sizeof(T));
template <class T>
constexpr int kCombineChunk = kTableThreads * kCombineElements<T>;  // elements

/// Calls work(combination) with the combination of T named by `terms`.
template <class T, class Work>
FC_DEVICE void with_combination(const CombineTerms& terms, int divisor, const Work& work) {
  constexpr bool kIsBool = std::is_same<T, Bool>::value;
  const ReduceOp op = terms.op;
  if constexpr (!std::is_integral<T>::value && !kIsBool) {
    if (op == ReduceOp::kMin) return work(FloatExtreme<T, false>());
    if (op == ReduceOp::kMax) return work(FloatExtreme<T, true>());
    if (op == ReduceOp::kProduct) return work(FloatProduct<T>());
    if (op == ReduceOp::kPremulSum) return work(Premultiplied<T>(terms.factor));
  }
  if constexpr (std::is_integral<T>::value) {
    if (op == ReduceOp::kMin) return work(IntegerExtreme<T, false>());
    if (op == ReduceOp::kMax) return work(IntegerExtreme<T, true>());
  }
  if constexpr (std::is_unsigned<T>::value || kIsBool) {
    if (op == ReduceOp::kBand) return work(And<T>());
    if (op == ReduceOp::kBor) return work(Or<T>());
    if (op == ReduceOp::kBxor) return work(Xor<T>());
  }
  if constexpr (std::is_unsigned<T>::value) {
    if (op == ReduceOp::kProduct) return work(IntegerProduct<T>());
    // multi_reduce has those of bytes.
    if constexpr (sizeof(T) > 1) {
      if (op == ReduceOp::kSum) return work(Divided<T>(divisor));
    }
  }
}

/// A block's chunks.
template <class T>
FC_DEVICE void combine_chunks(const TableView<SegmentHead>& table, const CombineTerms& terms) {
  constexpr uint64_t kElements = kCombineElements<T>;
  if (has_failed(table.terms.channel)) return;
  each_chunk<T, T, 0>(table, [&](const auto& worker, const SegmentHead& head, uint32_t chunk) {
    // Positions count from the pack in which the segment starts, elements from the segment's start.
    const uint64_t lead = head.lead;
    const uint64_t at = uint64_t{chunk} * kCombineChunk<T>;
    const uint64_t low = at < lead ? lead : at;
    const uint64_t end = lead + head.count;
    const uint64_t high = at + kCombineChunk<T> < end ? at + kCombineChunk<T> : end;
    const PackRange range(low, high, kElements, head.packed != kSingle);
    with_combination<T>(terms, table.terms.divisor, [&](const auto& op) {
      const uint64_t i = range.pack_low + threadIdx.x * kElements;
      if (i < range.pack_high) combine_raw<uint4>(op, worker, i - lead);
      FC_NO_UNROLL
      for (uint64_t k = threadIdx.x; k < range.singles(); k += blockDim.x) {
        combine_raw<T>(op, worker, range.single(k) - lead);
      }
    });
  });
}

}  // namespace fastcomm
