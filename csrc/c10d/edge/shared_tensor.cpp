#include "c10d/edge/shared_tensor.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <memory>

#include "c10d/engines/cuda/group_pool.h"
#include "core/env.h"
#include "core/error.h"
#include "transport/fork.h"
#include "transport/shm/shared_buffer.h"

namespace fastcomm {
namespace {

std::atomic<bool> g_any{false};

}  // namespace

std::string why_no_shared_memory() {
  if (forked_from_endpoint()) return "this is a child of fork(), whose segment is its parent's";
  if (environment().transport == "gloo") return "FASTCOMM_TRANSPORT=gloo";
  try {
    Endpoint::instance();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

at::Tensor shared_empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  FC_CHECK(!c10::isQIntType(dtype), "a tensor of ", dtype, " needs a quantizer");
  if (forked_from_endpoint()) throw Error(ErrorCode::kForked, why_no_shared_memory());
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) {
    FC_CHECK(size >= 0, "a tensor has no negative size ", size);
    FC_CHECK(!__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes),
             "a tensor of this size has more bytes than a machine can address");
  }
  auto buffer = std::make_shared<SharedBuffer>(Endpoint::instance(), bytes);
  g_any.store(true, std::memory_order_relaxed);
  void* data = buffer->data();
  // May grow like others, and then leaves shared memory: hooks of DDP pad its buckets.
  return at::for_blob(data, sizes)
      .deleter([buffer = std::move(buffer)](void*) mutable { buffer.reset(); })
      .options(at::TensorOptions().dtype(dtype))
      .allocator(c10::GetCPUAllocator())
      .resizeable_storage()
      .make_tensor();
}

bool is_shared(const at::Tensor& tensor) {
#if defined(FC_DEVICES)
  if (is_on_accelerator(tensor) && tensor.has_storage()) {
    return is_in_a_pool(tensor.storage().data(), tensor.storage().nbytes());
  }
#endif
  if (!g_any.load(std::memory_order_relaxed) || !tensor.device().is_cpu()) return false;
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return false;
  const auto& storage = tensor.storage();
  const auto& mapping = Endpoint::instance().segment().mapping();
  return mapping.offset_of(storage.data(), storage.nbytes()) != kNotShared;
}

}  // namespace fastcomm
