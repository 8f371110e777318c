// The CPU's reduction loops, one set per instruction set, behind a function table.
//
// Each set is compiled in a translation unit and namespace of its own (reduce_generic.cpp,
// reduce_avx2.cpp, reduce_avx512.cpp): inline functions compiled with wider instructions must not
// be merged by the linker with those that run everywhere. All sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace fastcomm {

struct ReduceSpan {
  void* dst;                   // count elements; may equal a source
  void* second_dst;            // the same result again, or nullptr
  const void* const* sources;  // one a rank, in rank order
  int num_sources;
  size_t count;  // elements
  int divisor;   // the sum is divided by it in the accumulator; 1: not at all
};

using ReduceFunction = void (*)(const ReduceSpan&);

/// The function for a dtype on this machine's processor. Raises Error for DType::kOther.
/// FASTCOMM_ISA=generic|avx2|avx512 narrows the choice.
ReduceFunction reduce_function(DType dtype);

/// "generic", "avx2" or "avx512": what reduce_function chooses from.
const char* reduce_isa();

}  // namespace fastcomm
