// One unit of a list of gradients, reduced and checked, for the fused schedules.
#pragma once

#include "coll/gradient_list.h"
#include "coll/plan.h"
#include "kernels/span_cpu.h"

namespace fastcomm {

/// Reduces source(0), source(1), ..., which hold the unit in its wire's type, over `size` ranks
/// into the gradient, and into `second` in the wire's type. A null `second` is not written. It must
/// not be null if the two types differ: the sum is rounded there. A source may be either of them.
/// Notes the unit's norm.
template <class Sources>
BlockNorm reduce_unit(CpuExecutor& executor, GradientList& list, uint32_t u, int size,
                      const Sources& source, char* second) {
  const GradientSpec& spec = list.spec();
  const GradientUnit& unit = list.unit(u);
  const Gradient& tensor = list.tensor_of(unit);
  const bool cast = tensor.wire != tensor.dtype;
  const uint64_t element = dtype_size(tensor.dtype), wire = dtype_size(tensor.wire);
  const auto typed = executor.typed(tensor.dtype, tensor.wire, spec.norm);
  NormLanes lanes;
  // In pieces: the norm of one is computed while the next one comes out of the peers' caches.
  for (uint64_t done = 0; done < unit.count; done += kNormPiece) {
    const uint64_t count = smaller(kNormPiece, unit.count - done);
    char* own = list.data_of(unit) + done * element;
    char* other = second == nullptr ? nullptr : second + done * wire;
    executor.reduce_typed_span(
        typed.reduce, cast ? other : own, cast ? nullptr : other, count * wire,
        [&](int peer) -> const char* { return source(peer) + done * wire; }, count,
        spec.average ? size : 1, spec.unscale);
    if (cast) typed.widen(own, other, count);
    typed.norm(lanes, own, count);
  }
  const BlockNorm norm = block_norm(lanes, spec.norm);
  list.note(u, norm);
  return norm;
}

}  // namespace fastcomm
