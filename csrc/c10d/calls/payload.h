// What an operation carries besides its call.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/calls/convert.h"

namespace fastcomm {

/// What each of our operations carries besides its Call: what to keep alive, what to write back,
/// and its future's value.
struct Payload {
  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  const char* title = "";         // for a profiler: "fastcomm:all_reduce"
  std::vector<at::Tensor> shown;  // likewise: what goes in
  std::vector<at::Tensor> value;  // the future's
  std::vector<Buffer> inputs;     // kept alive until the operation is done
  std::vector<Buffer> outputs;    // and written back
  std::function<void()>
      settle;  // before that (on the host only where an operation has ended well),
  std::function<void()> behind;  // and after it

  void write_back() const {
    if (settle) settle();
    for (const Buffer& output : outputs) output.write_back();
    if (behind) behind();
  }
};

}  // namespace fastcomm
