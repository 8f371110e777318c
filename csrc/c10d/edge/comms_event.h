// A collective or a message as tools around torch's profiler know it: the event
// record_param_comms, with the data that torch's own backends for devices give it.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/requests/request.h"

namespace fastcomm {

/// Lasts while a call is submitted, on one thread. Metadata of a trace: name, type, elements in and
/// out, splits, and the group's name, description and ranks.
class CommsEvent {
 public:
  /// Begins, if a profiler runs; else this costs a look at the thread's callbacks. `number` tells
  /// the call among those of the group, from 1 on, or that whoever serves it makes such events.
  template <class Number>
  CommsEvent(::c10d::Backend& group, const Request& request, const Number& number) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
    if (!callbacks) return;
    const std::optional<uint64_t> told = number();
    if (told) begin(std::move(*callbacks), group, request, *told);
  }
  CommsEvent(const CommsEvent&) = delete;
  CommsEvent& operator=(const CommsEvent&) = delete;

 private:
  void begin(at::StepCallbacks&& callbacks, ::c10d::Backend& group, const Request& request,
             uint64_t number);

  // In this order: the event reads what the guard has set, until it ends.
  std::optional<c10::DebugInfoGuard> guard_;
  std::optional<at::RecordFunction> event_;
};

}  // namespace fastcomm
