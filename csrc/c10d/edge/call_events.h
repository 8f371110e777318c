// A call as torch's profiler shows it on the thread that issues it, and as tools around the
// profiler know it. What happens to the call afterwards: c10d/edge/span_tracks.h.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/engines/engine.h"
#include "c10d/requests/request.h"

namespace fastcomm {

/// Two events, which last while a call is submitted, on one thread:
///   record_param_comms    with the data that torch's own backends for devices give it: name,
///                         type, elements in and out, splits, the group's name, description, ranks
///   "fastcomm:all_reduce" the call with its tensors, as other backends name theirs
/// Calls that another of torch's backends serves: the first one unless that makes its own (NCCL),
/// and not the second.
class CallEvents {
 public:
  /// True if a profiler runs.
  static bool are_wanted() {
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  }
  /// Begins, if a profiler runs; else this costs one look at the thread's callbacks: who
  /// watches functions watches what users mark, too.
  CallEvents(::c10d::Backend& group, const Engine& engine, const Request& request) {
    if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) {
      begin_comms(group, engine, request);
      if (engine.is_native()) begin_call(std::move(*callbacks), engine, request);
    }
  }
  CallEvents(const CallEvents&) = delete;
  CallEvents& operator=(const CallEvents&) = delete;

 private:
  void begin_comms(::c10d::Backend& group, const Engine& engine, const Request& request);
  void begin_call(at::StepCallbacks&& callbacks, const Engine& engine, const Request& request);

  // In this order: events end before the guard that has set what they read.
  std::optional<c10::DebugInfoGuard> guard_;
  std::optional<at::RecordFunction> comms_, call_;
};

}  // namespace fastcomm
