// What an operation holds until it is done.
#pragma once

#include <c10/util/SmallVector.h>

#include <functional>

#include "c10d/requests/convert.h"

namespace fastcomm {

struct Held {
  c10::SmallVector<Buffer, 1> inputs;   // kept alive
  c10::SmallVector<Buffer, 1> outputs;  // and written back
  /// On the host these run only where the operation has ended well.
  std::function<void()> before_write_back, after_write_back;
  /// On a device, for an operation that is not started, since the group has failed.
  std::function<void()> instead;

  void write_back() const {
    if (before_write_back) before_write_back();
    for (const Buffer& output : outputs) output.write_back();
    if (after_write_back) after_write_back();
  }
};

}  // namespace fastcomm
