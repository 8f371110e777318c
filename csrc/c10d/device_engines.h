// Which engine serves tensors on a device, in a group whose ranks share memory.
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

#include "c10d/cuda/cuda_engine.h"
#include "c10d/delegate/delegate_engine.h"
#include "c10d/native/native_engine.h"

namespace fastcomm {

/// How backends for devices are made: in Python (fastcomm/_distributed/device_engines.py). Set once, from
/// bindings/module.cpp. Any of these may raise.
struct DeviceBackends {
  struct Made {
    std::string name;  // for messages: "NCCL"
    Engine::BackendPtr backend;
  };
  /// Whether there is a backend for any device that this process sees.
  std::function<bool()> any;
  /// Whether there is a backend for devices of this type.
  std::function<bool(c10::DeviceType)> known;
  /// A text that no other device of any machine has.
  std::function<std::string(c10::Device)> identify;
  std::function<Made(c10::Device, const c10::intrusive_ptr<::c10d::Store>&, int rank, int size,
                     Milliseconds timeout)>
      make;
  /// Reports that tensors on such devices go through the host's memory, and why.
  std::function<void(c10::DeviceType, int size, const std::string& why)> say_why_not;
  /// Reports that devices do not use each other's memory, and why; `other` serves them, or is what they use.
  std::function<void(c10::DeviceType, int size, const std::string& other, const std::string& why)>
      say_why_not_direct;
};
extern DeviceBackends g_device_backends;

/// What serves collectives with tensors on a device is agreed on at the group's first one there, in the
/// order in which its operations are issued: our kernels, if every rank's device reaches the others'
/// memory, or memory of the host that all share, as a trial shows (CudaEngine); a backend made for it, where
/// every rank has one and the ranks' devices differ; else the host's engine, copy by copy, for ever. Calls without
/// a kernel go to the second, or the third. Where kernels serve a rank's first device, its second one is agreed on
/// at the first collective there, together with the second ones of the others, and so on; else what is agreed on
/// holds for all devices of the type. Messages involve no third rank: they go to the backend unless the ranks have
/// agreed otherwise. What continuations of futures issue has an order of its own, and so always goes to
/// the host's engine.
///
/// Thread-safe.
class DeviceEngines {
 public:
  /// No other thread waits in the store. `host` outlives this.
  DeviceEngines(NativeEngine& host, c10::intrusive_ptr<::c10d::Store> store,
                c10::intrusive_ptr<::c10d::Backend::Options> options,
                Continuations::Ptr continuations);

  /// For a collective; the first one on a device may wait for the other ranks. Raises why the group
  /// has failed.
  Engine& for_collective(const at::Tensor& tensor);
  Engine& for_message(const at::Tensor& tensor);

  /// The engine of collectives on a device; nullptr until that is decided.
  Engine* decided(c10::Device device) const {
    const Slot* slot = type_of(device).find(device);
    return slot == nullptr ? nullptr : slot->collectives;
  }
  /// All engines for devices that there are.
  std::vector<Engine*> all();
  /// Why our kernels do not serve a device; "" if they do, or it is not decided yet.
  std::string why_not_direct(c10::Device device) const {
    const Slot* slot = type_of(device).find(device);
    return slot == nullptr ? "" : slot->why_not_direct;
  }
  /// What ends the calling thread's block of coalesced operations, besides the host's own work for it.
  std::vector<Engine::WorkPtr> end_coalescing();

 private:
  /// What was agreed on. Does not change.
  struct Slot {
    c10::DeviceIndex index;  // -1: all of the type
    Engine* collectives;
    c10::intrusive_ptr<Engine> direct;  // our kernels
    std::string why_not_direct;
    const Slot* before;
  };
  struct Type {
    /// The newest one. Stored with release once its engine is ready, loaded with acquire by its users.
    std::atomic<const Slot*> agreed{nullptr};
    std::atomic<Engine*> messages{nullptr};       // likewise
    c10::intrusive_ptr<DelegateEngine> delegate;  // under making_
    std::deque<Slot> slots;                       // likewise

    const Slot* find(c10::Device device) const {
      const Slot* slot = agreed.load(std::memory_order_acquire);
      while (slot != nullptr && slot->index != -1 && slot->index != device.index()) {
        slot = slot->before;
      }
      return slot;
    }
  };
  /// What a rank says of its device.
  struct Vote;

  Type& type_of(c10::Device device) { return types_.at(static_cast<size_t>(device.type())); }
  const Type& type_of(c10::Device device) const {
    return types_.at(static_cast<size_t>(device.type()));
  }
  Engine& agree(Type& type, c10::Device device);
  /// Makes the backend for a type, if there is none yet. Returns what went wrong, or "".
  std::string made(Type& type, c10::Device device);
  /// `number`: of this rank's devices that have been agreed on.
  std::vector<Vote> votes(c10::Device device, size_t number);
#if defined(FC_DEVICES)
  /// With windows on the devices, or else in the host's memory. Raises Error, the same on every rank: neither works.
  std::shared_ptr<CudaGroup> made_group(c10::Device device, const std::vector<Vote>& votes);
#endif
  /// Makes an engine of our kernels, over `other`, or says why there is none: the same on every rank.
  c10::intrusive_ptr<Engine> made_direct(c10::Device device, size_t number,
                                         const std::vector<Vote>& votes, Engine& other,
                                         std::string& why_not);
  Engine& coalesced(Engine& engine);

  NativeEngine& host_;
  const c10::intrusive_ptr<::c10d::Store> store_;
  const c10::intrusive_ptr<::c10d::Backend::Options> options_;
  const Continuations::Ptr continuations_;
  std::mutex deciding_;        // one thread agrees; held while it waits for others
  mutable std::mutex making_;  // for moments
  std::array<Type, c10::COMPILE_TIME_MAX_DEVICE_TYPES> types_;
};

}  // namespace fastcomm
