// One call of torch.distributed, on its way from the edge to the engine that serves it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "c10d/life/call_end.h"
#include "coll/operations.h"
#include "core/clock.h"
#include "core/types.h"

namespace fastcomm {

class AddRmsNorm;
struct GradientOptions;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

/// Refers to the caller's arguments: it lives on the stack while the call is submitted, and nobody
/// keeps it.
struct Request {
  /// The same call to another of torch's backends, which makes a work even for a synchronous call.
  using Forward = c10::function_ref<WorkPtr(::c10d::Backend&)>;
  static constexpr int kNoRank = -1;  // as the peer of a receive: any

  OpKind kind = OpKind::kNone;
  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  Milliseconds timeout = ::c10d::kUnsetTimeout;  // of the group
  bool async = false;
  bool coalesced = false;  // between startCoalescing() and endCoalescing()

  /// The tensors that this rank gives and gets, as in c10d. A tensor for both, as of all_reduce, is
  /// an output.
  at::TensorList inputs{}, outputs{};
  c10::ArrayRef<Tensors> input_lists{}, output_lists{};
  const ::c10d::ReduceOp* op = nullptr;
  int64_t root = kNoRank;
  c10::ArrayRef<int64_t> input_splits{}, output_splits{};  // rows; empty: equal parts
  int peer = kNoRank;
  int tag = 0;
  /// Of operations over lists (fused_all_reduce and its kin).
  const GradientOptions* gradients = nullptr;
  Tensors* results = nullptr;  // set when the call is put together
  /// Of all_reduce_add_rms_norm. What has not run it is for the caller to run.
  const std::shared_ptr<AddRmsNorm>* tail = nullptr;
  Forward forward{};  // none for operations that torch does not have
  /// What is written down of the call. Engines tell `end.record` of numbers and starts; the edge
  /// ends it with the work. An engine whose synchronous calls go on after submit() takes it away,
  /// and ends it.
  mutable CallEnd end{};

  const char* name() const { return op_kind_name(kind); }
  /// For a profiler, in c10d's words.
  const char* title() const {
    const bool from_any = kind == OpKind::kRecv && peer == kNoRank;
    return from_any ? "fastcomm:recvAnySource" : row_of(kind).title.c_str();
  }
  bool is_message() const { return kind == OpKind::kSend || kind == OpKind::kRecv; }
  bool is_over_list() const { return gradients != nullptr; }
  /// The tensors whose device decides which engines are asked.
  at::TensorList decisive() const { return inputs.empty() || op != nullptr ? outputs : inputs; }
  /// The value of its future: all tensors that this rank gets, or sends.
  Tensors value() const {
    if (results != nullptr && !results->empty()) return *results;
    return kind == OpKind::kSend ? inputs.vec() : joined(outputs, output_lists);
  }
  /// The inputs, for a profiler.
  Tensors shown() const {
    Tensors given = joined(inputs, input_lists);
    return given.empty() ? outputs.vec() : given;
  }
  static Tensors joined(at::TensorList tensors, c10::ArrayRef<Tensors> lists) {
    Tensors all = tensors.vec();
    for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  }
};

}  // namespace fastcomm
