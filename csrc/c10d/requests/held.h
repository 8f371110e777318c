// Objects that an operation holds until it is done.
#pragma once

#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>

#include "c10d/requests/convert.h"

namespace fastcomm {

struct Held {
  struct Steps {
    /// On the host these run only if the operation has ended well.
    std::function<void()> before_write_back, after_write_back;
    /// On a device, for an operation that is not started, since the group has failed.
    std::function<void()> instead;
  };

  c10::SmallVector<Buffer, 1> inputs;   // kept alive
  c10::SmallVector<Buffer, 1> outputs;  // and written back
  std::unique_ptr<Steps> steps;         // of the few operations that need more

  Steps& add_steps() {
    if (steps == nullptr) steps = std::make_unique<Steps>();
    return *steps;
  }

  void write_back() const {
    if (steps != nullptr && steps->before_write_back) steps->before_write_back();
    for (const Buffer& output : outputs) output.write_back();
    if (steps != nullptr && steps->after_write_back) steps->after_write_back();
  }
};

}  // namespace fastcomm
