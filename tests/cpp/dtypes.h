// The element types that tests go through.
#pragma once

#include <array>

#include "core/types.h"

namespace fastcomm::testing {

/// All that can be reduced.
inline constexpr std::array kDTypes = {
    DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8,
    DType::kUInt8,   DType::kInt16,   DType::kInt32,   DType::kInt64,    DType::kBool,
    DType::kUInt16,  DType::kUInt32,  DType::kUInt64};

/// Those that this build's CUDA kernels reduce, and among them those that convert to each other.
#if defined(FC_FEW_KERNELS)
inline constexpr std::array kKernelDTypes = {DType::kFloat32, DType::kBFloat16};
inline constexpr std::array kKernelFloats = kKernelDTypes;
#else
inline constexpr std::array kKernelDTypes = {
    DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8,
    DType::kUInt8,   DType::kInt16,   DType::kInt32,   DType::kInt64,    DType::kBool};
inline constexpr std::array kKernelFloats = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
#endif

}  // namespace fastcomm::testing
