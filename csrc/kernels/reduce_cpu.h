// The CPU's reduction loops, one set per instruction set (kernels/isa.h), behind a function table.
//
// SUM, AVG, PREMUL_SUM: core/numeric.h says in what they accumulate. Integers wrap; AVG truncates.
// PRODUCT accumulates as SUM does, in the order of the same tree, and is rounded once.
// MIN, MAX: a NaN anywhere gives NaN, and -0 is less than +0, so that the order of the sources changes
// no bit: the NaN is the quiet one without sign and payload (0x7fc00000 for fp32). Nor does a mode of
// the caller's thread, as flushing subnormals to zero.
// BAND, BOR, BXOR: of integers, bit by bit.
// bool: SUM, MAX and BOR are "or"; PRODUCT, MIN and BAND are "and"; BXOR is "differ".
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
  int divisor;       // a sum is divided by it in the accumulator; 1: not at all
  double scale = 1;  // floats are multiplied by it there, after that, as the accumulator's type
  double factor =
      1;  // floats: every source is, before the sum; then neither divisor nor scale count
};

using ReduceFunction = void (*)(const ReduceSpan&);

/// A function with a loop that must be vectorised: not inlined, so that it is found in the object code, where
/// tests/kernels/test_loops.py looks for it.
#define FC_LOOP __attribute__((noinline))

/// Why there is no such reduction, as the end of a sentence that advises; nullptr where there is one.
/// Pure: all ranks find the same. Complex numbers are known above only, as pairs of reals.
const char* why_no_reduction(DType dtype, ReduceOp op);

/// The function on this machine's processor; one for kSum, kAvg and kPremulSum, which the span's
/// divisor, scale and factor tell apart. Raises Error(kUnsupported) with why_no_reduction.
ReduceFunction reduce_function(DType dtype, ReduceOp op);

}  // namespace fastcomm
