// torch's tensors and options as the lower layers' calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "coll/call.h"
#include "core/types.h"
#include "tensors/dtype.h"

namespace fastcomm {

/// ReduceOp::kOther for a reduction without a name here.
ReduceOp reduce_op_of(const ::c10d::ReduceOp& op);

/// Sets op, and with PREMUL_SUM the factor, which must be equal on all ranks. Raises
/// Error(kInvalidArgument) if the factor is a tensor that is not on the CPU.
void set_reduction(Call& call, const ::c10d::ReduceOp& op);

/// True if its factor is a tensor that is not on the CPU: it can neither be read nor compared
/// without waiting for a device.
bool has_factor_on_device(const ::c10d::ReduceOp& op);

/// As why_no_reduction, for elements of a tensor, which may be complex.
const char* why_no_reduction_of(at::ScalarType type, ReduceOp op);

/// Raises Error(kUnsupported), naming `operation`, unless tensors like this one can be reduced this
/// way. The same on all ranks.
void require_reduction(const char* operation, const at::Tensor& tensor, const ::c10d::ReduceOp& op);

/// Memory that an engine's operations work on.
enum class Home {
  kHost,   // the host's: data on devices is copied there and back
  kTensor  // the tensor's own
};

/// A rank of a group, and the place of its operations' data.
struct Site {
  int rank;
  int size;
  Home home = Home::kHost;
  bool sends = true;  // else the group has failed
};

/// A tensor as one run of memory that an operation reads or writes, and the way back to it.
///
/// A complex tensor is taken as pairs of reals, which is right for sums, averages and copies;
/// require_reduction keeps other reductions away. A tensor that is not contiguous, or conjugated,
/// or not in the place, gets a contiguous copy there (on the host for a device in pinned memory if
/// there is some); write_back() copies it back to the user's tensor. Copies between host and device
/// wait for its current stream; those within a device are enqueued there.
class Buffer {
 public:
  explicit Buffer(const at::Tensor& tensor, Home home = Home::kHost);

  const at::Tensor& tensor() const { return user_; }
  void* data() const { return flat_.data_ptr(); }
  DType dtype() const { return dtype_; }
  /// Elements of dtype(); bytes for DType::kOther.
  uint64_t count() const { return count_; }
  uint64_t bytes() const { return count_ * dtype_size(dtype_); }
  void write_back() const;

 private:
  at::Tensor user_;
  at::Tensor flat_;  // contiguous
  DType dtype_;
  uint64_t count_;
};

/// Raises Error(kUnsupported) unless the tensor has memory that can be moved: dense, not quantized.
void require_dense(const char* operation, const at::Tensor& tensor);
/// The same, and Error(kInvalidArgument) for a tensor with several results in one place, such as an
/// expanded one.
void require_writable(const char* operation, const at::Tensor& tensor);

}  // namespace fastcomm
