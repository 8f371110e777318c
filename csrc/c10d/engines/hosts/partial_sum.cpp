#include "c10d/engines/hosts/partial_sum.h"

#include "kernels/gradient_cpu.h"

namespace fastcomm {
namespace {

bool is_narrow(DType type) { return type == DType::kFloat16 || type == DType::kBFloat16; }

/// A float of 16 bits is not rounded before the end, unless the reduction picks one of its values.
DType partial_type(DType type, ReduceOp op) {
  const bool picks = op == ReduceOp::kMin || op == ReduceOp::kMax;
  return is_narrow(type) && !picks ? DType::kFloat32 : type;
}

}  // namespace

PartialSum::PartialSum(const Call& call, int ranks)
    : type(call.dtype),
      partial(partial_type(call.dtype, call.op)),
      travels(partial),
      op(call.op == ReduceOp::kAvg ? ReduceOp::kSum : call.op),
      factor(call.factor),
      divisor(call.op == ReduceOp::kAvg ? ranks : 1),
      // The factor has been applied inside the hosts.
      add(reduce_function(travels, op == ReduceOp::kPremulSum ? ReduceOp::kSum : op)) {}

PartialSum::PartialSum(DType gradient, DType wire, const GradientSpec& spec, int ranks)
    : type(wire),
      partial(partial_type(wire, ReduceOp::kSum)),
      travels(wire == gradient ? partial : wire),  // another one was asked for
      op(ReduceOp::kSum),
      factor(1),
      divisor(spec.average ? ranks : 1),
      scale(spec.unscale),
      add(reduce_function(travels, op)) {}

const void* PartialSum::widened(const void* data, uint64_t count, void* room) const {
  if (!widens()) return data;
  convert_function(partial, type)(room, data, count);
  return room;
}

void PartialSum::add_terms(const std::vector<const void*>& terms, uint64_t count, void* sum) const {
  reduce_function(partial, op)(
      ReduceSpan{sum, nullptr, terms.data(), static_cast<int>(terms.size()), count, 1, 1, factor});
}

void PartialSum::make_ready(void* partials, uint64_t count) const {
  if (travels == partial) return;
  const void* const source = partials;
  reduce_function(partial, op)(ReduceSpan{partials, nullptr, &source, 1, count, divisor, scale});
  convert_function(travels, partial)(partials, partials, count);
}

void PartialSum::total(const std::vector<const void*>& travelled, uint64_t count, void* room,
                       void* output) const {
  const bool last = travels == partial;  // else these have been applied
  void* const to = travels == type ? output : room;
  add(ReduceSpan{to, nullptr, travelled.data(), static_cast<int>(travelled.size()), count,
                 last ? divisor : 1, last ? scale : 1});
  if (to != output) convert_function(type, travels)(output, to, count);
}

}  // namespace fastcomm
