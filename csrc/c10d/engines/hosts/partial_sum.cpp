#include "c10d/engines/hosts/partial_sum.h"

#include "kernels/gradient_cpu.h"

namespace fastcomm {
namespace {

/// A float of 16 bits is not rounded before the end, unless the reduction picks one of its values.
DType partial_type(const Call& call) {
  const bool picks = call.op == ReduceOp::kMin || call.op == ReduceOp::kMax;
  const bool narrow = call.dtype == DType::kFloat16 || call.dtype == DType::kBFloat16;
  return narrow && !picks ? DType::kFloat32 : call.dtype;
}

}  // namespace

PartialSum::PartialSum(const Call& call, int ranks)
    : type(call.dtype),
      partial(partial_type(call)),
      op(call.op == ReduceOp::kAvg ? ReduceOp::kSum : call.op),
      factor(call.factor),
      divisor(call.op == ReduceOp::kAvg ? ranks : 1),
      // The factor has been applied inside the hosts.
      add(reduce_function(partial, op == ReduceOp::kPremulSum ? ReduceOp::kSum : op)) {}

const void* PartialSum::widened(const void* data, uint64_t count, void* room) const {
  if (!widens()) return data;
  convert_function(partial, type)(room, data, count);
  return room;
}

void PartialSum::total(const std::vector<const void*>& partials, uint64_t count, void* room,
                       void* output) const {
  void* const to = widens() ? room : output;
  add(ReduceSpan{to, nullptr, partials.data(), static_cast<int>(partials.size()), count, divisor});
  if (widens()) convert_function(type, partial)(output, to, count);
}

}  // namespace fastcomm
