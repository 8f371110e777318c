// The types that kernels are made for (has_cuda_kernel in core/types.h: those that they sum up).
#pragma once

#include "core/visit_types.h"

namespace fastcomm {

#if defined(FC_FEW_KERNELS)
template <class T>
constexpr bool is_summed = is_any_of<T, float, BFloat16>;
template <class T>
constexpr bool is_combined = is_any_of<T, float, int8_t>;
#else
template <class T>
constexpr bool is_summed = !is_any_of<T, uint16_t, uint32_t, uint64_t>;
template <class T>
constexpr bool is_combined = true;
#endif

/// As for_type, for types that are summed up; Made() for others.
template <class Made, class Make>
Made for_sum_type(DType dtype, const Make& make) {
  return for_type<Made>(dtype, [&](auto tag) -> Made {
    if constexpr (is_summed<typename decltype(tag)::Type>) return make(tag);
    return Made();
  });
}

/// As for_type, for types of other reductions.
template <class Made, class Make>
Made for_combined_type(DType dtype, const Make& make) {
  return for_type<Made>(dtype, [&](auto tag) -> Made {
    if constexpr (is_combined<typename decltype(tag)::Type>) return make(tag);
    return Made();
  });
}

}  // namespace fastcomm
