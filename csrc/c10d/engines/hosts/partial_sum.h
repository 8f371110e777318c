// What the sum of one host is made of, and the sum over hosts: types, kernels, the last steps.
//
// A partial has the accumulator's type, so 16-bit floats travel as fp32. The division of AVG and
// the rounding come last: then the bits are those of one host. Where the user wants 16 bits on the
// wire, each host's partial is divided, scaled and rounded to them before it travels, the own one
// too: then the bits are the same on all ranks, and not those of one host.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/call.h"
#include "coll/gradient_list.h"
#include "kernels/reduce_cpu.h"

namespace fastcomm {

struct PartialSum {
  DType type;     // of the terms and the result
  DType partial;  // of a host's sum
  DType travels;  // of that between hosts
  ReduceOp op;    // inside a host
  double factor;
  int divisor;         // of the total
  double scale = 1;    // of that, after the division
  ReduceFunction add;  // what travels

  /// `ranks`: of the whole group. Raises Error(kUnsupported) if nothing reduces this.
  PartialSum(const Call& call, int ranks);
  /// Of gradients of one type, which travel as `wire`.
  PartialSum(DType gradient, DType wire, const GradientSpec& spec, int ranks);

  bool widens() const { return partial != type; }
  size_t size() const { return dtype_size(type); }
  size_t partial_size() const { return dtype_size(partial); }
  size_t travel_size() const { return dtype_size(travels); }
  /// The data itself, or in `room` as partials.
  const void* widened(const void* data, uint64_t count, void* room) const;
  /// The sum of terms of one host, which are partials: the place of one may be that of the sum.
  void add_terms(const std::vector<const void*>& terms, uint64_t count, void* sum) const;
  /// Makes of a host's partials what travels, in place.
  void make_ready(void* partials, uint64_t count) const;
  /// The sum of what travels, one for each host, in their order, as the call's type. `room` is for
  /// `count` partials, if what travels has another type.
  void total(const std::vector<const void*>& travelled, uint64_t count, void* room,
             void* output) const;
};

}  // namespace fastcomm
