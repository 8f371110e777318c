#include "c10d/requests/joined_tensors.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace fastcomm {

JoinedTensors::JoinedTensors(at::TensorList tensors, bool filled) {
  size_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    require_dense("a list of tensors", tensor);
    offsets_.push_back(total);
    total += buffers_.emplace_back(tensor).bytes();
  }
  memory_ = at::empty({static_cast<int64_t>(total)}, at::TensorOptions().dtype(at::kByte));
  for (size_t i = 0; filled && i < buffers_.size(); ++i) {
    if (buffers_[i].bytes() != 0) std::memcpy(at(i), buffers_[i].data(), buffers_[i].bytes());
  }
}

void JoinedTensors::write_back() const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].bytes() != 0) std::memcpy(buffers_[i].data(), at(i), buffers_[i].bytes());
    buffers_[i].write_back();
  }
}

}  // namespace fastcomm
