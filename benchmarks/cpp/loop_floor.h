// Loops written by hand for one instruction set each, beside which benchmarks/cpp/reduce_loops.cpp
// times the library's: what a processor does on memory that is in its cache. They share no code
// with csrc/kernels. Sums alone are checked for their bits; of NaNs they promise nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace floor_loops {

/// What is made of a sum.
enum Finish { kNothing, kDivided, kDividedAndScaled, kFinishes };
/// Sums of `sources`, in the order of a balanced tree, to one destination or to two.
using Sum = void (*)(const void* const* sources, size_t count, void* dst, void* second,
                     float divisor, float scale);
/// Conversions of `count` elements.
using Convert = void (*)(const void* from, size_t count, void* to);

struct Loops {
  Sum sums[3][9][kFinishes];  // [fp32, bf16, fp16][sources], 1 to 8
  Convert narrow[2];          // fp32 to bf16, fp16
  Convert widen[2];           // back
};

const Loops* avx2_loops();
const Loops* avx512_loops();

}  // namespace floor_loops
