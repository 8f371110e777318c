// The interface of engines, which carry out a group's calls: in shared memory, between devices, on
// another backend.
//
// A group asks its engines in an order that all ranks have in common, and gives a call as a whole
// to the first that takes it (choose/choose.h). So a new engine needs a folder, and a line there
// that makes it, or is registered from outside (EngineMaker).
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "c10d/requests/request.h"
#include "c10d/works/continuations.h"
#include "coll/select.h"
#include "core/clock.h"
#include "core/error.h"

namespace fastcomm {

/// Common data of a group's engines.
struct GroupContext {
  int rank;
  int size;
  c10::intrusive_ptr<::c10d::Backend::Options> options;  // the timeout, which may change
  Continuations::Ptr continuations;
};

/// Threads: any thread may submit; c10d asks that all ranks issue the operations of a group in one
/// order.
///
/// Progress: a caller that waits on a Work helps; other operations go on by themselves, on a thread
/// of the engine. Submitting an asynchronous request waits for no peer.
///
/// Streams: an operation on a device comes after the earlier work of the caller's current stream.
/// Work::wait() returns when the then current stream may use the result: in host memory, when it is
/// done; on a device, when the stream waits for it.
///
/// Errors: of the arguments at once; of the operation from wait(), exception() and the future, as
/// types of fastcomm/errors.py. After the first error that is not about arguments alone, the engine
/// has failed: all operations under way end in that error, and every later one reports it.
class Engine {
 public:
  explicit Engine(GroupContext context) : context_(std::move(context)) {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return context_.rank; }
  int size() const { return context_.size; }
  Milliseconds timeout() const { return context_.options->timeout; }

  static constexpr uint8_t kNoNumber = 255;
  /// Its number in records, once that is known (c10d/edge/call_records.h).
  mutable std::atomic<uint8_t> recorded_as{kNoNumber};

  /// Name for messages: "shared memory", "Gloo".
  virtual std::string name() const = 0;
  /// True if this code serves calls, and not another backend.
  virtual bool is_native() const { return false; }
  /// True if tensors on devices stay there.
  virtual bool is_on_devices() const { return false; }
  /// True if the backend behind it tells torch's tools of its calls by itself.
  virtual bool tells_itself() const { return false; }

  /// True if it carries out such a call. The same on every rank: it depends on the kind, types,
  /// sizes and places of tensors that all ranks have.
  virtual bool takes(const Request& request) const = 0;
  /// The same for dense tensors on its device, by the data known without them.
  virtual bool takes(const Query&) const { return true; }
  /// The way in which it would carry out such a call. The same on every rank. Ignores the group's
  /// state.
  virtual Selection explain(const Query& query) const = 0;

  /// Carries out a call that it takes; nullptr if that is done. Lets Error out.
  virtual WorkPtr submit(const Request& request) = 0;
  /// A barrier that returns when all ranks have come. Its timeout names the missing ones.
  virtual void monitored_barrier(const ::c10d::BarrierOptions&, bool /*wait_all_ranks*/) {
    throw Error(ErrorCode::kUnsupported, "monitored_barrier: not by " + name());
  }
  /// True if the calling thread's further calls are one operation to it, up to end_block(), which
  /// returns its work, if anything was submitted.
  virtual bool begin_block() { return false; }
  virtual WorkPtr end_block() { return nullptr; }
  /// Number of operations submitted.
  virtual uint64_t submitted() const = 0;
  /// Of the next collective, in messages.
  virtual uint64_t next_number() const { return submitted(); }

  /// The reason why nothing can be submitted any more; nullptr while something can. Waits for
  /// nobody.
  virtual std::exception_ptr failure() const = 0;
  /// True once the group was given up, here or, as far as that is seen from here, by a peer, or a
  /// peer has died; not because it was destroyed. Changes nothing, and waits for nobody.
  virtual bool is_in_trouble() const { return failure() != nullptr; }
  /// Gives up here, because another engine of the group has: operations under way end in `why`, and
  /// peers are told if the engine can. Idempotent; never waits for a peer.
  virtual void fail(const std::exception_ptr& why) = 0;
  /// The same, because the program asks for it.
  virtual void abort() = 0;
  /// Leaves in good order: peers finish the operations that this rank has taken part in. `how`
  /// tells them the cause, unless the group was just destroyed. Idempotent; waits for no peer.
  virtual void leave(const std::string& how) = 0;
  /// Abandons threads and locks that a child of fork() does not have, and must not end.
  virtual void abandon() {}
  /// Takes effect from the next call on. The group has set it in the options.
  virtual void set_timeout(Milliseconds) {}

  /// A tensor on the engine's device in memory that its operations use in place, like torch.empty;
  /// undefined, with the reason, if there is none. As CudaGroup::empty.
  virtual at::Tensor shared_empty(at::IntArrayRef, at::ScalarType, std::string& why) {
    why = name() + " has no memory that operations use in place";
    return {};
  }

 protected:
  /// What torch has in the errors of ranks that have come to a monitored barrier that others have
  /// not.
  static std::string came_to_monitored_barrier(int rank) {
    return concat("Rank ", rank,
                  " successfully reached monitoredBarrier, but received errors while waiting for "
                  "send/recv from rank 0");
  }
  Milliseconds timeout_or_default(Milliseconds timeout) const {
    return timeout == ::c10d::kUnsetTimeout ? this->timeout() : timeout;
  }
  const Continuations::Ptr& continuations() const { return context_.continuations; }

  const GroupContext context_;
};

/// Makes an engine of every group that is formed from then on, which is asked before fastcomm's
/// own. `store` is its alone. May raise; nullptr: not in this group.
using EngineMaker =
    std::function<std::unique_ptr<Engine>(const GroupContext&, c10::intrusive_ptr<::c10d::Store>)>;

}  // namespace fastcomm
