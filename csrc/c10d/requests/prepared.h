// A call of the layers below while it is put together: its parameters, and the objects that it
// holds.
#pragma once

#include <c10/util/SmallVector.h>

#include <memory>

#include "c10d/requests/held.h"
#include "c10d/requests/request.h"
#include "coll/call.h"
#include "coll/messages.h"

namespace fastcomm {

struct Prepared {
  Call call;
  Held held;
  Home home;

  Prepared(OpKind kind, Home where) : home(where) { call.kind = kind; }

  const char* name() const { return op_kind_name(call.kind); }
  /// Sets the header's description of one rank's message.
  void of(const Buffer& message);
  /// Sets the reduction. Raises Error(kUnsupported) if there is none for tensors like this one.
  void reduce(const ::c10d::ReduceOp& op, const at::Tensor& tensor) {
    require_reduction(name(), tensor, op);
    set_reduction(call, op);
  }
  /// Keeps a tensor alive until the call is done; one that is also written gets the result back.
  const Buffer& read(const at::Tensor& tensor);
  const Buffer& write(const at::Tensor& tensor);
  /// Adds the properties of tensors of several sizes that must be equal on all ranks.
  void compare(at::TensorList tensors);
  /// Sets the messages that are sent and expected, and compares sizes that are known in pairs.
  void exchange(std::shared_ptr<Messages> messages, int rank);
};

/// The calls of a request: one, or one for each tensor of a list.
using Calls = c10::SmallVector<Prepared, 1>;

/// Raises Error(kInvalidArgument) unless there is one tensor, which it returns.
const at::Tensor& only(const char* operation, at::TensorList tensors);
/// Raises Error(kInvalidArgument) unless the root is a rank of the group.
int checked_root(const char* operation, int64_t root, int size);
/// Raises Error(kInvalidArgument) unless the two have one dtype.
void check_dtype(const char* operation, const at::Tensor& a, const char* a_name,
                 const at::Tensor& b, const char* b_name);
/// Raises Error(kInvalidArgument) unless `whole` has as many elements as `parts` times `part`, and
/// its dtype.
void check_parts(const char* operation, const at::Tensor& whole, const char* whole_name,
                 const at::Tensor& part, const char* part_name, int parts);
/// True if all have as many elements as `one`.
bool are_even(at::TensorList tensors, const at::Tensor& one);

/// True if `part` may be written while the parts of `whole` are read, or the other way round: it
/// overlaps none of them except its own part, at the same place.
template <class Pointer>
bool apart(const void* part, const std::vector<Pointer>& whole, uint64_t bytes, int rank) {
  const auto* one = static_cast<const char*>(part);
  for (size_t peer = 0; peer < whole.size(); ++peer) {
    const auto* other = static_cast<const char*>(whole[peer]);
    if (static_cast<int>(peer) == rank && other == one) continue;
    if (other < one + bytes && one < other + bytes) return false;
  }
  return true;
}

/// The same for messages: nothing that is written overlaps a message that is sent.
bool apart(const Messages& messages, int rank);

/// Copies of all, for tensors that are not apart.
Tensors clones(at::TensorList tensors);

}  // namespace fastcomm
