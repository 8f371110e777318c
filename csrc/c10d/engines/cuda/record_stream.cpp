// torch's record_stream for tensors of groups' pools. The kernels of torch's allocators do nothing
// for memory that is not theirs.
//
// The key BackendSelect is below all that looks at a tensor before its device does (autograd,
// functionalization, modes and subclasses of Python), above the kernel of every device, and part of
// every call: there all tensors are what they seem, and the next kernel is the device's own.
#include "c10d/engines/cuda/group_pool.h"
#if defined(FC_DEVICES)
#include <ATen/ops/record_stream_ops.h>
#include <torch/library.h>

namespace fastcomm {
namespace {

void record_stream(c10::DispatchKeySet keys, at::Tensor& self, c10::Stream stream) {
  if (is_on_accelerator(self) && self.has_storage() && stream.device_type() == kAccelerator &&
      record_in_a_pool(self.storage().data(), stream)) {
    return;
  }
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  at::_ops::record_stream::redispatch(keys & below, self, stream);
}

TORCH_LIBRARY_IMPL(aten, BackendSelect, library) {
  library.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace
}  // namespace fastcomm
#endif
