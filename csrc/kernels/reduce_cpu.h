// The CPU's reduction loops, one set per instruction set (kernels/isa.h), and the choice of one.
//
// SUM, AVG, PREMUL_SUM: accumulate as in core/numeric.h. Integers wrap; AVG truncates.
// PRODUCT: accumulates like SUM, in the order of the same tree, and is rounded once.
// MIN, MAX: a NaN anywhere gives NaN, and -0 is less than +0, so neither the order of the sources
// nor a mode of the caller's thread, such as flushing subnormals to zero, changes a bit: the NaN is
// the quiet one without sign and payload (0x7fc00000 for fp32).
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
  const void* const* sources;  // one per rank, in rank order
  int num_sources;
  size_t count;      // elements
  int divisor;       // divides the sum in the accumulator; 1: no division
  double scale = 1;  // floats: multiplies after that, as the accumulator's type
  /// Floats: multiplies every source before the sum; if not 1, divisor and scale are ignored.
  double factor = 1;
};

using ReduceFunction = void (*)(const ReduceSpan&);

/// A function with a loop that must be vectorised. It is not inlined, so that
/// tests/kernels/test_loops.py finds it in the object code.
#define FC_LOOP __attribute__((noinline))

/// The reason why there is no such reduction, or advice, as the end of a message; nullptr if there
/// is one. Pure: all ranks get the same. Complex numbers are pairs of reals here; only upper
/// layers know them.
const char* why_no_reduction(DType dtype, ReduceOp op);

/// The function for this machine's processor. kSum, kAvg and kPremulSum share one, and differ by
/// the span's divisor, scale and factor. Raises Error(kUnsupported) with why_no_reduction.
ReduceFunction reduce_function(DType dtype, ReduceOp op);

}  // namespace fastcomm
