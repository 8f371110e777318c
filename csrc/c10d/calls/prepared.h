// A call while it is put together: what is asked for, and what it holds.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "c10d/calls/payload.h"
#include "c10d/engine.h"
#include "coll/call.h"
#include "coll/messages.h"
#include "coll/operations.h"

namespace fastcomm {

struct Prepared {
  Call call;
  Payload payload;
  Place place;

  Prepared(OpKind kind, ::c10d::OpType type, Place place = Place::kHost);

  const char* name() const { return op_kind_name(call.kind); }
  /// Sets what a header says of one rank's message.
  void of(const Buffer& message);
  /// Sets the reduction. Raises Error(kUnsupported) where there is none for tensors like this one.
  void reduce(const ::c10d::ReduceOp& op, const at::Tensor& tensor) {
    require_reduction(name(), tensor, op);
    set_reduction(call, op);
  }
  /// Keeps a tensor alive until the call is done; one that is also written gets the result back.
  Buffer read(const at::Tensor& tensor);
  Buffer write(const at::Tensor& tensor);
  /// Adds what must be equal on all ranks, of tensors of several sizes.
  void compare(const Tensors& tensors);
  /// Sets what is sent and expected by whom: compares it, where sizes are known in pairs.
  void exchange(std::shared_ptr<Messages> messages, int rank);
};

/// For a profiler.
inline const char* title_of(const Call& call) { return row_of(call.kind).title.c_str(); }
/// Compares the type, too, where it is moved as bytes.
void note_type(Call& call, const at::Tensor& tensor);

/// Raises Error(kInvalidArgument) unless there is one tensor, which it returns.
const at::Tensor& only(const char* operation, const Tensors& tensors);
/// Raises Error(kInvalidArgument) unless the root is a rank of the group.
int checked_root(const char* operation, int64_t root, int size);
/// Raises Error(kInvalidArgument) unless the two have one dtype.
void check_dtype(const char* operation, const at::Tensor& a, const char* a_name,
                 const at::Tensor& b, const char* b_name);
/// Raises Error(kInvalidArgument) unless `whole` has as many elements as `parts` times `part`, and its
/// dtype.
void check_parts(const char* operation, const at::Tensor& whole, const char* whole_name,
                 const at::Tensor& part, const char* part_name, int parts);
/// Raises Error(kInvalidArgument) unless `lists` is one list of `size` tensors like `each`, at the
/// root, and empty elsewhere.
void check_root_list(const char* operation, const TensorLists& lists, const at::Tensor& each,
                     bool is_root, int size);

/// Whether `part` may be written while the parts of `whole` are read, or the other way round: it
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

/// The same of messages: nothing that is written overlaps what is sent.
bool apart(const Messages& messages, int rank);

/// Copies of all, for tensors that are not apart.
Tensors clones(const Tensors& tensors);

}  // namespace fastcomm
