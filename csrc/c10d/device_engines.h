// Which engine serves tensors on a device, in a group whose ranks share memory.
#pragma once

#include <array>
#include <atomic>
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

/// How backends for devices are made: in Python (fastcomm/_device_engines.py). Set once, from
/// bindings/module.cpp. Any of these may raise.
struct DeviceBackends {
  struct Made {
    std::string name;  // for messages: "NCCL"
    Engine::BackendPtr backend;
  };
  /// Whether there is one for any device that this process sees.
  std::function<bool()> any;
  /// Whether there is one for devices of this type.
  std::function<bool(c10::DeviceType)> known;
  /// A text that no other device of any machine has.
  std::function<std::string(c10::Device)> identify;
  std::function<Made(c10::Device, const c10::intrusive_ptr<::c10d::Store>&, int rank, int size,
                     Milliseconds timeout)>
      make;
  /// Says that tensors on such devices go through the host's memory, and why.
  std::function<void(c10::DeviceType, int size, const std::string& why)> say_why_not;
  /// Says that devices do not use each other's memory, and why; `other` serves them, or is what they use.
  std::function<void(c10::DeviceType, int size, const std::string& other, const std::string& why)>
      say_why_not_direct;
};
extern DeviceBackends g_device_backends;

/// What serves collectives with tensors on a type of device is agreed on at the group's first one, in the
/// order in which its operations are issued: kernels of ours, if every rank's device reaches the others'
/// memory, or memory of the host that all share, as a trial shows (CudaEngine); a backend made for it, where
/// every rank has one and the ranks' devices differ; else the host's engine, copy by copy, for ever. What there is no kernel for
/// goes to the second, or the third. Messages ask no third rank: they go to the backend unless the ranks have
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

  /// For a collective; the first one of a type of device waits for the other ranks. Raises why the group
  /// has failed.
  Engine& for_collective(const at::Tensor& tensor);
  Engine& for_message(const at::Tensor& tensor);

  /// The engine of collectives on such devices; nullptr while that is not decided.
  Engine* decided(c10::DeviceType type) const {
    const auto& slot = slots_.at(static_cast<size_t>(type));
    return slot.collectives.load(std::memory_order_acquire);
  }
  /// Those that there are.
  std::vector<Engine*> all();
  /// Why kernels of ours do not serve such devices; "" if they do, or it is not decided.
  std::string why_not_direct(c10::DeviceType type) const;
  /// What ends the calling thread's block of coalesced operations, besides the host's own work for it.
  std::vector<Engine::WorkPtr> end_coalescing();

 private:
  struct Slot {
    /// Stored with release once the engine is ready, loaded with acquire by who uses it.
    std::atomic<Engine*> collectives{nullptr};
    std::atomic<Engine*> messages{nullptr};
    c10::intrusive_ptr<DelegateEngine> delegate;  // written under making_
    c10::intrusive_ptr<Engine> direct;            // likewise: kernels of ours
    std::string why_not_direct;                   // likewise
  };
  /// What a rank says of its device.
  struct Vote;

  Engine& chosen(std::atomic<Engine*> Slot::* use, const at::Tensor& tensor);
  Engine& agree(Slot& slot, c10::Device device);
  /// Makes the slot's engine, if there is none yet. Returns what went wrong, or "".
  std::string made(Slot& slot, c10::Device device);
  std::vector<Vote> votes(c10::Device device);
#if defined(FC_DEVICES)
  /// With windows on the devices, or else in the host's memory. Raises Error, the same on every rank: neither.
  std::shared_ptr<CudaGroup> made_group(c10::Device device, const std::vector<Vote>& votes);
#endif
  /// Makes the slot's engine of our own kernels, over `other`. Returns why there is none, or "": the same on
  /// every rank.
  std::string made_direct(Slot& slot, c10::Device device, const std::vector<Vote>& votes,
                          Engine& other);
  Engine& coalesced(Engine& engine);

  NativeEngine& host_;
  const c10::intrusive_ptr<::c10d::Store> store_;
  const c10::intrusive_ptr<::c10d::Backend::Options> options_;
  const Continuations::Ptr continuations_;
  std::mutex deciding_;        // one thread agrees; held while it waits for others
  mutable std::mutex making_;  // for moments
  std::array<Slot, c10::COMPILE_TIME_MAX_DEVICE_TYPES> slots_;
};

}  // namespace fastcomm
