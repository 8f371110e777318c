// How the backend runs or starts a native call: for the files that implement it.
#pragma once

#include <ATen/record_function.h>

#include <utility>
#include <vector>

#include "c10d/calls/prepared.h"
#include "c10d/exception.h"
#include "c10d/hooks.h"
#include "c10d/native/native_engine.h"

namespace fastcomm {

template <class WriteBack, class MakePayload>
NativeEngine::WorkPtr NativeEngine::launch(const Call& call, Milliseconds timeout, bool async,
                                           at::TensorList shown, const WriteBack& write_back,
                                           const MakePayload& make_payload) {
  ++calls_;
  return translating([&]() -> WorkPtr {
    const Milliseconds limit = timeout_or_default(timeout);
    const std::shared_ptr<Communicator> group = lanes_.here(limit);
    if (async || coalescing_.open()) {
      return coalescing_.noted(
          NativeWork::start(group, call, limit, make_payload(), continuations_));
    }
    // As c10d's Work makes it for other backends, whose events are asynchronous whoever waits.
    at::RecordFunction event(at::RecordScope::USER_SCOPE);
    std::vector<c10::IValue> inputs;
    if (event.isActive()) {
      event._setAsync();
      inputs.assign(shown.begin(), shown.end());
      event.before(title_of(call), &inputs);
    }
    const auto operation = group->run(call, limit, g_interrupt_check);
    if (operation->error() != nullptr) {
      return NativeWork::failed(getRank(), make_payload(), operation->error(), continuations_);
    }
    write_back();
    return nullptr;  // c10d takes this for "done" where the caller asked for a synchronous call
  });
}

inline NativeEngine::WorkPtr NativeEngine::launch(Prepared made, Milliseconds timeout, bool async) {
  return launch(
      made.call, timeout, async, made.payload.shown, [&] { made.payload.write_back(); },
      [&] { return std::move(made.payload); });
}

}  // namespace fastcomm
