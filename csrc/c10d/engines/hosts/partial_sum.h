// What the sum of one host is made of, and the sum over hosts: types, kernels, the last steps.
//
// A partial has the accumulator's type, so 16-bit floats travel as fp32. The division of AVG and
// the rounding come last.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/call.h"
#include "kernels/reduce_cpu.h"

namespace fastcomm {

struct PartialSum {
  DType type;     // of the call
  DType partial;  // of a host's sum
  ReduceOp op;    // inside a host
  double factor;
  int divisor;         // of the total
  ReduceFunction add;  // partials

  /// `ranks`: of the whole group. Raises Error(kUnsupported) if nothing reduces this.
  PartialSum(const Call& call, int ranks);

  bool widens() const { return partial != type; }
  size_t size() const { return dtype_size(type); }
  size_t partial_size() const { return dtype_size(partial); }
  /// The data itself, or in `room` as partials.
  const void* widened(const void* data, uint64_t count, void* room) const;
  /// The sum of one partial for each host, in their order, as the call's type. `room` is for
  /// `count` partials, if that is another type.
  void total(const std::vector<const void*>& partials, uint64_t count, void* room,
             void* output) const;
};

}  // namespace fastcomm
