// Turns a dtype known at run time into a C++ type that code is compiled for.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/numeric.h"
#include "core/types.h"

namespace fastcomm {

template <class T>
struct TypeTag {
  using Type = T;
};

/// Returns make(TypeTag<T>()) for the dtype's type T; Made() for DType::kOther.
template <class Made, class Make>
constexpr Made for_type(DType dtype, const Make& make) {
  switch (dtype) {
    case DType::kFloat32:
      return make(TypeTag<float>());
    case DType::kFloat64:
      return make(TypeTag<double>());
    case DType::kFloat16:
      return make(TypeTag<Half>());
    case DType::kBFloat16:
      return make(TypeTag<BFloat16>());
    case DType::kInt8:
      return make(TypeTag<int8_t>());
    case DType::kUInt8:
      return make(TypeTag<uint8_t>());
    case DType::kInt16:
      return make(TypeTag<int16_t>());
    case DType::kUInt16:
      return make(TypeTag<uint16_t>());
    case DType::kInt32:
      return make(TypeTag<int32_t>());
    case DType::kUInt32:
      return make(TypeTag<uint32_t>());
    case DType::kInt64:
      return make(TypeTag<int64_t>());
    case DType::kUInt64:
      return make(TypeTag<uint64_t>());
    case DType::kBool:
      return make(TypeTag<Bool>());
    default:
      return Made();
  }
}

/// The dtype of a C++ type that for_type visits.
template <class T>
constexpr DType dtype_for() {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto is_of = [](auto tag) {
      return std::is_same<typename decltype(tag)::Type, T>::value;
    };
    if (for_type<bool>(static_cast<DType>(i), is_of)) return static_cast<DType>(i);
  }
  return DType::kOther;
}

template <class T, class... Types>
constexpr bool is_any_of = (std::is_same<T, Types>::value || ...);

/// True for types that are summed in fp32.
template <class T>
constexpr bool is_short_float = is_any_of<T, float, Half, BFloat16>;

template <class T>
constexpr bool is_float_type = is_short_float<T> || std::is_same<T, double>::value;

}  // namespace fastcomm
