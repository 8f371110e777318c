// Choice of the engine for a call.
//
//   tensors                        engines, in the order in which they are asked
//   in the host's memory, or none  those registered from outside; shared memory
//   on a device                    those registered from outside; our kernels, if every rank's
//                                  device reaches the others' memory, or memory of the host that
//                                  all share, as a trial shows; a backend of torch's made for the
//                                  device, if every rank has one and the ranks' devices differ,
//                                  else shared memory, copy by copy
//   ... issued by continuations    shared memory, on a lane of their own
//   ranks that share no memory     in the host's memory: the engine of several hosts, if they can
//                                  be composed, then another of torch's backends; on a device: a
//                                  backend as above, else the same
//   ... issued by continuations    the same two as in the host's memory, on a lane of their own
//
// The ranks agree on the engine for collectives with tensors on a device at the group's first one
// there, in the order in which its operations are issued, and for ever. If kernels serve a rank's
// first device, its second one is agreed on at the first collective there, together with the second
// ones of the others, and so on; else the agreement holds for all devices of the type. Messages
// involve no third rank: they go to the backend unless the ranks have agreed otherwise. Operations
// issued by continuations of futures have an order of their own.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/choose/gloo_lanes.h"
#include "c10d/engines/cuda/cuda_engine.h"
#include "c10d/engines/delegate/delegate_engine.h"
#include "c10d/engines/hosts/hosts_engine.h"
#include "c10d/engines/native/native_engine.h"
#include "c10d/life/groups.h"

namespace fastcomm {

/// Makers of backends for devices, in Python (fastcomm/_distributed/device_engines.py). Set once,
/// from bindings/module.cpp. Any of these may raise.
struct DeviceBackends {
  struct Made {
    std::string name;  // for messages: "NCCL"
    DelegateEngine::BackendPtr backend;
  };
  /// True if there is a backend for any device that this process sees.
  std::function<bool()> any;
  /// True if there is a backend for devices of this type.
  std::function<bool(c10::DeviceType)> known;
  /// A text that no other device of any machine has.
  std::function<std::string(c10::Device)> identify;
  std::function<Made(c10::Device, const c10::intrusive_ptr<::c10d::Store>&, int rank, int size,
                     Milliseconds timeout)>
      make;
  /// Reports that tensors on such devices go through the host's memory, and the reason.
  std::function<void(c10::DeviceType, int size, const std::string& why)> say_why_not;
  /// Reports that devices do not use each other's memory, and the reason; `other` serves them, or
  /// is the memory that they use.
  std::function<void(c10::DeviceType, int size, const std::string& other, const std::string& why)>
      say_why_not_direct;
  /// Warns of a device that ends kernels which wait long for another rank; `timeout` is how long
  /// they may in this group.
  std::function<void(c10::Device, Milliseconds timeout)> warn_of_display;
};
extern DeviceBackends g_device_backends;

/// Registers an engine from outside, for all groups that are formed from here on. Thread-safe.
void register_engine(EngineMaker maker);

/// The engines of a group. Thread-safe.
class Engines {
 public:
  /// Engines that are asked one after the other.
  using Route = std::vector<Engine*>;

  /// For ranks that share memory. No other thread waits in the store.
  Engines(std::shared_ptr<Communicator> group, GroupContext context,
          c10::intrusive_ptr<::c10d::Store> store);
  /// For other ranks: `whole` does everything, except where a backend for a device does it, or the
  /// ranks of each `host` do a part. `address` as in GlooMaker.
  Engines(DelegateEngine::BackendPtr whole, HostRanks host, GroupContext context,
          const std::string& label, std::string address, c10::intrusive_ptr<::c10d::Store> store);

  /// The engine that takes a call; nullptr if none does. The first collective on a device may wait
  /// for the other ranks. Raises the failure of the group.
  Engine* choose(const Request& request);
  /// The engines that are asked for collectives on a device; nothing until that is decided.
  Route route_of(c10::Device device) const;

  /// The engine for tensors in the host's memory, and for calls without tensors.
  Engine& host() const { return *host_; }
  /// The same for the calling thread's collectives.
  Engine& host_here(Milliseconds timeout);
  /// The engine that takes every call on tensors in the host's memory outside of continuations, if
  /// ranks share memory; nullptr if another one might.
  NativeEngine* sole_native() const { return before_.empty() ? native_ : nullptr; }
  /// All other engines, those first that stand before that one.
  std::vector<Engine*> others() const;
  /// The reason why our kernels do not serve a device; "" if they do, or it is not decided yet.
  std::string why_not_direct(c10::Device device) const;
  /// A tensor on a device: Engine::shared_empty of the engine for collectives there.
  at::Tensor shared_empty(c10::Device device, at::IntArrayRef sizes, at::ScalarType dtype,
                          std::string& why) const;
  /// True if an engine might take the calls of a block as one.
  bool may_coalesce() const;

 private:
  /// An agreement. Does not change.
  struct Slot {
    c10::DeviceIndex index;  // -1: all of the type
    Route route;
    std::unique_ptr<Engine> direct;  // our kernels
    std::string why_not_direct;
    const Slot* before;
  };
  struct Type {
    /// The newest one. Stored with release once its engines are ready, loaded with acquire by their
    /// users.
    std::atomic<const Slot*> agreed{nullptr};
    std::atomic<Engine*> messages{nullptr};    // likewise
    std::unique_ptr<DelegateEngine> delegate;  // under making_
    std::deque<Slot> slots;                    // likewise

    const Slot* find(c10::Device device) const {
      const Slot* slot = agreed.load(std::memory_order_acquire);
      while (slot != nullptr && slot->index != -1 && slot->index != device.index()) {
        slot = slot->before;
      }
      return slot;
    }
  };
  /// A rank's message about its device.
  struct Vote;

  Type& type_of(c10::Device device) { return types_.at(static_cast<size_t>(device.type())); }
  const Type& type_of(c10::Device device) const {
    return types_.at(static_cast<size_t>(device.type()));
  }
  const Route& route_for(const at::Tensor& tensor);
  Engine* engine_of_message(const at::Tensor& tensor);
  const Slot& agree(Type& type, c10::Device device);
  /// Makes the backend for a type, if there is none yet. If it cannot, gives the group up and
  /// raises.
  void make(Type& type, c10::Device device);
  /// `number` counts this rank's devices that have been agreed on.
  std::vector<Vote> votes(c10::Device device, size_t number);
  /// The start of the group's warnings.
  const std::string& label() const;
#if defined(FC_DEVICES)
  /// With windows on the devices, or else in the host's memory. Raises Error, the same on every
  /// rank, if neither works.
  std::shared_ptr<CudaGroup> made_group(c10::Device device, const std::vector<Vote>& votes);
#endif
  /// Makes an engine of our kernels, or gives the reason why there is none: the same on every rank.
  std::unique_ptr<Engine> made_direct(c10::Device device, size_t number,
                                      const std::vector<Vote>& votes, std::string& why_not);

  const GroupContext context_;
  const c10::intrusive_ptr<::c10d::Store> store_;
  std::unique_ptr<Engine> host_;
  std::vector<std::unique_ptr<Engine>> before_;  // asked before it; they end first
  // The host's, as the one or the other.
  NativeEngine* native_ = nullptr;    // if ranks share memory
  DelegateEngine* whole_ = nullptr;   // else
  HostsEngine* hosts_ = nullptr;      // before that, if there is one
  std::unique_ptr<GlooLanes> lanes_;  // of those two
  Route host_route_;
  std::mutex deciding_;        // one thread agrees; held while it waits for others
  mutable std::mutex making_;  // for moments
  std::array<Type, c10::COMPILE_TIME_MAX_DEVICE_TYPES> types_;  // whose engines go first
};

}  // namespace fastcomm
