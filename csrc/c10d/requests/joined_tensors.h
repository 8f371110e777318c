// Several tensors as one message.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "c10d/requests/convert.h"

namespace fastcomm {

/// Copies of tensors, end to end, in memory of their own. Cheap to copy: copies share it.
class JoinedTensors {
 public:
  /// The tensors' memory, read if `filled`.
  explicit JoinedTensors(at::TensorList tensors, bool filled = true);

  char* data() const { return static_cast<char*>(memory_.data_ptr()); }
  size_t bytes() const { return static_cast<size_t>(memory_.numel()); }
  /// Start of the copy of one tensor.
  char* at(size_t index) const { return data() + offsets_[index]; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  /// Copies everything back to the tensors.
  void write_back() const;

 private:
  std::vector<Buffer> buffers_;
  std::vector<size_t> offsets_;
  at::Tensor memory_;
};

}  // namespace fastcomm
