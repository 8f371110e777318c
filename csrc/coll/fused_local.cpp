#include "coll/fused_local.h"

#include "kernels/reduce_cpu.h"

namespace fastcomm {
namespace {

void note_norm(GradientList& list, uint32_t u) {
  const GradientUnit& unit = list.unit(u);
  const NormKind kind = list.spec().norm;
  NormLanes lanes;
  norm_function(list.tensor_of(unit).dtype, kind)(lanes, list.data_of(unit), unit.count);
  list.note(u, block_norm(lanes, kind));
}

}  // namespace

void reduce_units(GradientList& list, const std::vector<std::vector<const char*>>& sources,
                  uint32_t begin, uint32_t end) {
  constexpr size_t kWireBytes = kNormBlock * 2;  // of a block in a type that needs a cast
  const GradientSpec& spec = list.spec();
  const int size = static_cast<int>(sources.size());
  std::vector<char> casts;
  std::vector<const void*> from(sources.size());
  for (uint32_t u = begin; u < end; ++u) {
    const GradientUnit& unit = list.unit(u);
    const Gradient& tensor = list.tensor_of(unit);
    char* own = list.data_of(unit);
    const uint64_t first = unit.first * dtype_size(tensor.dtype);
    for (int k = 0; k < size; ++k) from[k] = sources[k][unit.tensor] + first;
    const ReduceFunction reduce = reduce_function(tensor.wire, ReduceOp::kSum);
    const int divisor = spec.average ? size : 1;
    if (tensor.wire == tensor.dtype) {
      reduce(ReduceSpan{own, nullptr, from.data(), size, unit.count, divisor, spec.unscale});
    } else {
      casts.resize((sources.size() + 1) * kWireBytes);
      for (int k = 0; k < size; ++k) {
        char* cast = casts.data() + k * kWireBytes;
        if (tensor.residual != nullptr) {
          feedback_function(tensor.wire)(cast, static_cast<const float*>(from[k]),
                                         tensor.residual + unit.first, unit.count);
        } else {
          convert_function(tensor.wire, tensor.dtype)(cast, from[k], unit.count);
        }
        from[k] = cast;
      }
      char* sum = casts.data() + sources.size() * kWireBytes;
      reduce(ReduceSpan{sum, nullptr, from.data(), size, unit.count, divisor, spec.unscale});
      convert_function(tensor.dtype, tensor.wire)(own, sum, unit.count);
    }
    note_norm(list, u);
  }
}

void note_norms(GradientList& list, uint32_t begin, uint32_t end) {
  for (uint32_t u = begin; u < end; ++u) {
    note_norm(list, u);
  }
}

void reduce_alone(GradientList& list) {
  std::vector<const char*> own;
  for (const Gradient& tensor : list.tensors()) own.push_back(tensor.data);
  reduce_units(list, {own}, 0, list.units());
}

}  // namespace fastcomm
