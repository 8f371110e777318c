// What serves a group's tensors on one type of device.
//
// A group has one engine for the CPU from its start (NativeEngine where its ranks share memory, else
// DelegateEngine over Gloo), and may have one for another type of device. FastcommBackend gives each call
// to the engine of its tensors; one for devices may give a whole call to another engine, based on what all
// ranks know of it (serving()).
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "c10d/continuations.h"
#include "coll/select.h"
#include "core/clock.h"
#include "core/error.h"
#include "transport/fork.h"

namespace fastcomm {

struct GradientOptions;
using ShardOffsets = std::vector<uint64_t>;

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

/// Operations are submitted through c10d::Backend's own methods; one that an engine does not override is
/// refused there. For all of them:
///
/// Threads: any thread may submit; c10d asks that all ranks issue the operations of a group in one order.
/// Progress: a caller that waits on a Work helps, and what no one waits for goes on by itself, on a thread
/// of the engine. Submitting waits for no peer where the options say asyncOp.
/// Streams: an operation on a device comes after what the caller's current stream was given before, and
/// Work::wait() returns when the current stream then may use the result: in host memory, when it is
/// done; on a device, when the stream waits for it.
/// Errors: of the arguments at once; of the operation from wait(), exception() and the future, as types of
/// fastcomm/errors.py. After the first error that is not about arguments alone, the engine has failed: all
/// operations that are under way end in that error, and every later one reports it.
class Engine : public ::c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

  /// `options` holds the group's timeout, `continuations` are the group's own.
  Engine(int rank, int size, c10::intrusive_ptr<Options> options, Continuations::Ptr continuations)
      : ::c10d::Backend(rank, size),
        options_(std::move(options)),
        continuations_(std::move(continuations)) {}

  /// What serves the calls, for messages: "shared memory", "Gloo".
  virtual std::string name() const = 0;

  /// Whether this code serves calls, and not another backend.
  virtual bool is_native() const { return false; }
  /// The engine that such a call ends at.
  virtual const Engine& serving(const Query&) const { return *this; }

  /// How it would carry such a call out, or why it does not take it. The same on every rank. Ignores the
  /// group's state.
  virtual Selection explain(const Query& query) const = 0;

  /// Why nothing can be submitted any more; nullptr while something can. Waits for no one.
  virtual std::exception_ptr failure() const = 0;

  /// Gives up here, because another engine of the group has: operations under way end in `why`, and
  /// peers are told as far as the engine can. Idempotent; never waits for a peer.
  virtual void fail(const std::exception_ptr& why) = 0;

  /// Leaves in good order: peers finish what this rank has taken part in. `how` tells them what
  /// happened, if not just that the group was destroyed. Idempotent; waits for no peer.
  virtual void leave(const std::string& how) = 0;

  /// A tensor on the engine's device in memory that its operations use in place, as torch.empty; undefined, with
  /// the reason, where there is none. As CudaGroup::empty.
  virtual at::Tensor shared_empty(at::IntArrayRef, at::ScalarType, std::string& why) {
    why = name() + " has no memory that operations use in place";
    return {};
  }

  /// A fused all_reduce, and its results besides the gradients: tensors as in tensors/gradients.h, complete
  /// when the work is, or at once where there is none.
  struct Fused {
    WorkPtr work;
    Tensors results;
  };
  /// With shards a fused reduce_scatter: elements that other ranks own are left in an unspecified state.
  /// Nothing where the engine cannot take such a list.
  virtual std::optional<Fused> fused_reduce(const Tensors&, const GradientOptions&,
                                            std::optional<Milliseconds>, bool /*async*/) {
    return std::nullopt;
  }

  /// Gives every rank the shards of all others, where the tensors live. Tensors without offsets are left out.
  /// Nothing, as above.
  virtual std::optional<Fused> gather_shards(const Tensors&, const std::vector<ShardOffsets>&,
                                             std::optional<Milliseconds>, bool /*async*/) {
    return std::nullopt;
  }

  /// Whether the calling thread is between startCoalescing() and endCoalescing().
  virtual bool coalescing() const = 0;

  /// Abandons what a child of fork() must not end: threads and locks that it does not have.
  virtual void abandon() {}

  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

  /// From the next call on. The group has set it in the options, which the engine shares.
  void setTimeout(std::chrono::milliseconds) override {}

 protected:
  /// Raises Error(kInvalidArgument) unless `peer` is another rank of the group.
  void check_peer(const char* operation, int peer) const {
    FC_CHECK(peer >= 0 && peer < getSize(), operation, ": rank ", peer, " is not in a group of ",
             getSize());
    FC_CHECK(peer != getRank(), operation, ": the peer is this rank itself, ", peer);
  }
  /// Raises Error(kForked) in a child of fork(). `front()` makes the start of the message: only there, since
  /// every operation asks.
  template <class Front>
  static void check_process(const Front& front) {
    if (!forked_from_endpoint()) return;
    throw Error(ErrorCode::kForked,
                front() +
                    "this is a child of fork(): a process group cannot be used here. Start workers "
                    "before init_process_group, with the spawn method, or keep them off the group");
  }
  Milliseconds timeout_or_default(Milliseconds timeout) const {
    return timeout == ::c10d::kUnsetTimeout ? options_->timeout : timeout;
  }

  const c10::intrusive_ptr<Options> options_;
  const Continuations::Ptr continuations_;
};

}  // namespace fastcomm
