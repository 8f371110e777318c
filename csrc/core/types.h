// Names shared by every layer: element types, reductions, operations.
//
// The numeric values of these enumerations travel between processes in call headers
// (transport/control_block.h): append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastcomm {

enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kUInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kBool = 9,
  kOther = 10,  // moved as bytes, never reduced
  kUInt16 = 11,
  kUInt32 = 12,
  kUInt64 = 13,
};
constexpr int kNumDTypes = 14;

enum class ReduceOp : uint8_t {
  kNone = 0,  // the operation does not reduce
  kSum = 1,
  kAvg = 2,
  kOther = 3,  // a reduction without a kernel
  kMin = 4,
  kMax = 5,
  kProduct = 6,
  kBand = 7,
  kBor = 8,
  kBxor = 9,
  kPremulSum = 10,
};
constexpr int kNumReduceOps = 11;

// The operations; coll/operations.h describes each.
enum class OpKind : uint8_t {
  kNone = 0,
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kBarrier = 4,
  kOther = 5,
  kReduce = 6,
  kAllGatherIntoTensor = 7,
  kGather = 8,
  kScatter = 9,
  kReduceScatter = 10,
  kReduceScatterTensor = 11,
  kAllToAll = 12,
  kAllToAllSingle = 13,
  kAllReduceCoalesced = 14,
  kAllGatherCoalesced = 15,
  kAllGatherIntoTensorCoalesced = 16,
  kReduceScatterTensorCoalesced = 17,
  // Over lists of tensors.
  kFusedAllReduce = 18,
  kFusedReduceScatter = 19,
  kGatherShards = 20,
  // Messages of different sizes, or sparse ones; they have the name of their operation.
  kAllGatherUneven = 21,
  kReduceScatterUneven = 22,
  kAllReduceSparse = 23,
  // Between two ranks: no headers, no schedule (engines/cpu/point_to_point.h).
  kSend = 24,
  kRecv = 25,
  // With a tail: kernels/add_rms_norm_cpu.h.
  kAllReduceAddRmsNorm = 26,
};
constexpr int kNumOpKinds = 27;

constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUInt16:
      return 2;
    default:
      return 1;
  }
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

/// torch's names if it has them, in the order of OpKind. Variants of an operation share its name.
inline constexpr const char* kOpKindNames[kNumOpKinds] = {"none",
                                                          "all_reduce",
                                                          "broadcast",
                                                          "all_gather",
                                                          "barrier",
                                                          "other",
                                                          "reduce",
                                                          "all_gather_into_tensor",
                                                          "gather",
                                                          "scatter",
                                                          "reduce_scatter",
                                                          "reduce_scatter_tensor",
                                                          "all_to_all",
                                                          "all_to_all_single",
                                                          "all_reduce_coalesced",
                                                          "all_gather_coalesced",
                                                          "all_gather_into_tensor_coalesced",
                                                          "reduce_scatter_tensor_coalesced",
                                                          "fused_all_reduce",
                                                          "fused_reduce_scatter",
                                                          "gather_shards",
                                                          "all_gather",
                                                          "reduce_scatter",
                                                          "all_reduce",
                                                          "send",
                                                          "recv",
                                                          "all_reduce_add_rms_norm"};

/// A kind may have been read from another process's memory.
constexpr const char* op_kind_name(OpKind kind) {
  return kOpKindNames[static_cast<int>(kind < static_cast<OpKind>(kNumOpKinds) ? kind
                                                                               : OpKind::kOther)];
}

/// True if CUDA kernels sum it. For the CPU's loops see why_no_reduction in kernels/reduce_cpu.h.
constexpr bool has_cuda_kernel(DType dtype) { return dtype < DType::kOther; }

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* kNames[kNumDTypes] = {"float32", "float64", "float16", "bfloat16", "int8",
                                              "uint8",   "int16",   "int32",   "int64",    "bool",
                                              "bytes",   "uint16",  "uint32",  "uint64"};
  return kNames[static_cast<int>(dtype)];
}

constexpr const char* reduce_op_name(ReduceOp op) {
  constexpr const char* kNames[kNumReduceOps] = {
      "none", "sum", "avg", "other", "min", "max", "product", "band", "bor", "bxor", "premul_sum"};
  return kNames[static_cast<int>(op)];
}

}  // namespace fastcomm
