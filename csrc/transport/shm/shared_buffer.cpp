#include "transport/shm/shared_buffer.h"

#include <algorithm>

#include "transport/fork.h"

namespace fastcomm {

SharedBuffer::SharedBuffer(Endpoint& endpoint, size_t bytes)
    : endpoint_(endpoint), bytes_(std::max<size_t>(bytes, 1)), offset_(endpoint.allocate(bytes_)) {
  try {
    endpoint_.segment().reserve(offset_, bytes_);
  } catch (...) {
    endpoint_.segment().free(offset_, bytes_);
    throw;
  }
  endpoint_.segment().inherit(offset_, bytes_, true);
}

SharedBuffer::~SharedBuffer() {
  if (forked_from_endpoint()) return;
  endpoint_.segment().inherit(offset_, bytes_, false);
  endpoint_.free(offset_, bytes_);
}

}  // namespace fastcomm
