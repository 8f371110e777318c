// Events of torch's profiler.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <memory>
#include <utility>
#include <vector>

namespace fastcomm {

/// An event that has begun, and ends with end() or when it is dropped; nullptr if no profiler runs.
/// Then nothing is allocated, and `shown`, which returns the tensors of the call, is not called.
/// `async`: another thread may end it.
template <class Shown>
std::shared_ptr<at::RecordFunction> begin_event(const char* title, bool async, const Shown& shown) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return nullptr;
  auto event = std::make_shared<at::RecordFunction>(std::move(*callbacks));
  if (async) event->_setAsync();
  std::vector<c10::IValue> tensors;  // read as the event begins, and not after
  for (const at::Tensor& tensor : shown()) tensors.emplace_back(tensor);
  event->before(title, &tensors);
  return event;
}

}  // namespace fastcomm
