// The CPU's reduction loops, one set per instruction set (kernels/isa.h), behind a function table.
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
  size_t count;      // elements
  int divisor;       // the sum is divided by it in the accumulator; 1: not at all
  double scale = 1;  // floats are multiplied by it there, behind that, as the accumulator's type
  double factor =
      1;  // floats: every source is, before the sum; then neither divisor nor scale count
};

using ReduceFunction = void (*)(const ReduceSpan&);

/// The function for a dtype on this machine's processor. Raises Error for DType::kOther.
ReduceFunction reduce_function(DType dtype);

}  // namespace fastcomm
