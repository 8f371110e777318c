#include "c10d/device_engines.h"

#include <algorithm>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/device_hosts.h"
#include "c10d/exception.h"
#include "core/env.h"
#include "core/signature.h"
#include "core/tuning.h"

namespace fastcomm {

DeviceBackends g_device_backends;

namespace {

constexpr size_t kTextBytes = 240;
constexpr uint64_t kSlotBytes = 64 * 1024;  // of short operations between devices, unless it is set

template <size_t kBytes>
void set_text(char (&to)[kBytes], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), kBytes - 1));
}

std::string type_name(c10::Device device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

bool known(c10::Device device) {
  return g_device_backends.known && g_device_backends.known(device.type());
}

/// Why none of our kernels serves such devices here; "" if one may.
std::string why_no_kernels(c10::Device device, int size) {
#if defined(FC_DEVICES)
  if (environment().route == "nccl") return "FASTCOMM_ROUTE=nccl";
  if (device.type() != kAccelerator) return "no kernels for tensors on " + type_name(device);
  if (size > kMaxDeviceRanks) {
    return concat(size, " ranks, but at most ", kMaxDeviceRanks, " use each other's devices");
  }
  return size == 1 ? "one rank has nobody to meet" : "";
#else
  static_cast<void>(size);
  return "built without kernels for tensors on " + type_name(device);
#endif
}

}  // namespace

struct DeviceEngines::Vote {
  uint64_t area_bytes = 0;
  uint64_t slot_bytes = 0;
  uint64_t pool_bytes = 0;
  ChosenBy slot_by = ChosenBy::kDefault;
  int blocks = 0;
  char pulls = 0;
  char ipc[16] = {};  // FASTCOMM_IPC
  char has_backend = 0;
  char wants_pinned = 0;         // for its windows
  char device[kTextBytes] = {};  // its name, or why there is no backend
  char why_not_direct[kTextBytes] = {};

  Vote() = default;
  Vote(c10::Device device, int size)
      : area_bytes(environment().window_bytes),
        pool_bytes(environment().pool_bytes),
        wants_pinned(environment().route == "pinned") {
    choose_kernels(size);
    set_text(ipc, environment().ipc);
    set_text(why_not_direct, why_no_kernels(device, size));
    try {
      has_backend = known(device) ? 1 : 0;
      set_text(this->device, known(device) ? g_device_backends.identify(device)
                                           : concat("torch has no backend for tensors on ",
                                                    type_name(device), " here"));
    } catch (const std::exception&) {
      has_backend = 0;
      set_text(this->device, what_of(std::current_exception()));
    }
  }

  /// By the environment, else as tuned (core/tuning.h), else by default.
  void choose_kernels(int size) {
    const Environment& env = environment();
    const Tuning tuning = tuning_for(size);
    slot_bytes = kSlotBytes;
    if (tuning.slot_bytes != 0) {
      slot_bytes = tuning.slot_bytes;
      slot_by = ChosenBy::kTuning;
    }
    if (env.payload_bytes != 0) {
      slot_bytes = env.payload_bytes;
      slot_by = ChosenBy::kEnvironment;
    }
    blocks = env.device_blocks != 0 ? env.device_blocks : tuning.device_blocks;
    pulls = env.device_results == "auto" ? tuning.pulls : env.device_results == "pull";
  }

  /// What keeps the ranks from using their backends, or "".
  static std::string why_no_backend(const std::vector<Vote>& votes) {
    for (size_t rank = 0; rank < votes.size(); ++rank) {
      if (votes[rank].has_backend == 0) return concat("rank ", rank, ": ", votes[rank].device);
      for (size_t other = 0; other < rank; ++other) {
        if (std::strcmp(votes[rank].device, votes[other].device) != 0) continue;
        return concat("ranks ", other, " and ", rank, " share a device, ", votes[rank].device);
      }
    }
    return "";
  }
};

DeviceEngines::DeviceEngines(NativeEngine& host, c10::intrusive_ptr<::c10d::Store> store,
                             c10::intrusive_ptr<::c10d::Backend::Options> options,
                             Continuations::Ptr continuations)
    : host_(host),
      store_(std::move(store)),
      options_(std::move(options)),
      continuations_(std::move(continuations)) {}

Engine& DeviceEngines::for_collective(const at::Tensor& tensor) {
  if (Continuations::here().depth != 0) return host_;
  Type& type = type_of(tensor.device());
  if (const Slot* slot = type.find(tensor.device())) return coalesced(*slot->collectives);
  const std::lock_guard<std::mutex> lock(deciding_);
  if (const Slot* slot = type.find(tensor.device())) return coalesced(*slot->collectives);
  return coalesced(agree(type, tensor.device()));
}

Engine& DeviceEngines::for_message(const at::Tensor& tensor) {
  if (Continuations::here().depth != 0) return host_;
  Type& type = type_of(tensor.device());
  if (Engine* engine = type.messages.load(std::memory_order_acquire)) return coalesced(*engine);
  Engine* engine = &host_;
  if (known(tensor.device())) {
    const std::string problem = made(type, tensor.device());
    if (!problem.empty()) throw Error(ErrorCode::kSystem, problem);
    engine = type.delegate.get();
  }
  // Unless the ranks have agreed meanwhile.
  Engine* none = nullptr;
  type.messages.compare_exchange_strong(none, engine, std::memory_order_acq_rel);
  return coalesced(*type.messages.load(std::memory_order_acquire));
}

Engine& DeviceEngines::coalesced(Engine& engine) {
  if (&engine != &host_ && host_.coalescing() && !engine.coalescing()) engine.startCoalescing();
  return engine;
}

std::vector<Engine::WorkPtr> DeviceEngines::end_coalescing() {
  std::vector<Engine::WorkPtr> works;
  for (Engine* engine : all()) {
    if (engine->coalescing()) works.push_back(engine->endCoalescing());
  }
  return works;
}

Engine& DeviceEngines::agree(Type& type, c10::Device device) {
#if defined(FC_DEVICES)
  if (device.type() == kAccelerator && is_capturing(device.index())) {
    throw Error(ErrorCode::kUnsupported,
                "the first collective of a process group on a device cannot be captured into a "
                "graph: the ranks agree then what serves it. Run one before the capture");
  }
#endif
  const size_t number = type.slots.size();  // written under deciding_, too
  const std::vector<Vote> votes = this->votes(device, number);
  const std::string why_not = Vote::why_no_backend(votes);
  Engine* engine = &host_;
  if (why_not.empty()) {
    const std::string problem = made(type, device);
    if (!problem.empty()) {  // the others have theirs
      std::rethrow_exception(host_.group()->failed("forming", ErrorCode::kSystem, problem));
    }
    engine = type.delegate.get();
  }
  if (number == 0) type.messages.store(engine, std::memory_order_release);
  std::string why_not_direct;
  c10::intrusive_ptr<Engine> direct = made_direct(device, number, votes, *engine, why_not_direct);
  const bool tells = host_.getRank() == 0 && number == 0 && !why_not_direct.empty();
  if (tells && !why_not.empty()) {
    if (g_device_backends.say_why_not) {
      g_device_backends.say_why_not(device.type(), host_.getSize(), why_not);
    }
  } else if (tells && votes[0].why_not_direct[0] == '\0' && g_device_backends.say_why_not_direct) {
    g_device_backends.say_why_not_direct(device.type(), host_.getSize(), engine->name(),
                                         why_not_direct);
  }
  if (direct != nullptr) engine = direct.get();
  // Where the first device has no kernels, the answer holds for all devices, and no rank has to ask again.
  const bool of_all = number == 0 && direct == nullptr;
  const std::lock_guard<std::mutex> lock(making_);
  const Slot* before = type.agreed.load(std::memory_order_relaxed);
  type.slots.push_back({static_cast<c10::DeviceIndex>(of_all ? -1 : device.index()), engine,
                        std::move(direct), std::move(why_not_direct), before});
  type.agreed.store(&type.slots.back(), std::memory_order_release);
  return *engine;
}

#if defined(FC_DEVICES)
std::shared_ptr<CudaGroup> DeviceEngines::made_group(c10::Device device,
                                                     const std::vector<Vote>& votes) {
  FormingHosts hosts(host_);
  CudaGroup::Options options;
  options.area_bytes = votes[0].area_bytes;
  options.slot_bytes = votes[0].slot_bytes;
  options.slot_by = votes[0].slot_by;
  options.blocks = votes[0].blocks;
  options.pulls = votes[0].pulls != 0;
  options.pool_bytes = votes[0].pool_bytes;
  options.ways = device_ways(votes[0].ipc);
  options.timeout = options_->timeout;
  const auto made = [&] {
    return std::make_shared<CudaGroup>(hosts, host_.group(), device.index(), options);
  };
  for (size_t rank = 0; rank < votes.size() && options.why.empty(); ++rank) {
    if (votes[rank].wants_pinned == 0) continue;
    options.why = concat("rank ", rank, ": FASTCOMM_ROUTE=pinned");
  }
  const bool asked = !options.why.empty();
  if (!asked) {
    try {
      return made();
    } catch (const Error& error) {
      if (host_.failure() != nullptr) throw;
      options.why = error.what();
    }
  }
  options.place = WindowPlace::kHost;
  std::shared_ptr<CudaGroup> group;
  try {
    group = made();
  } catch (const Error& error) {
    if (host_.failure() != nullptr) throw;
    throw Error(ErrorCode::kSystem,
                concat(options.why, "; through pinned memory of the host: ", error.what()));
  }
  if (!asked && host_.getRank() == 0 && g_device_backends.say_why_not_direct) {
    g_device_backends.say_why_not_direct(device.type(), host_.getSize(),
                                         "pinned memory of the host", options.why);
  }
  return group;
}
#endif

c10::intrusive_ptr<Engine> DeviceEngines::made_direct(c10::Device device, size_t number,
                                                      const std::vector<Vote>& votes, Engine& other,
                                                      std::string& why_not) {
  for (size_t rank = 0; rank < votes.size() && why_not.empty(); ++rank) {
    const char* text = votes[rank].why_not_direct;
    if (*text != '\0') why_not = concat("rank ", rank, ": ", text);
  }
#if defined(FC_DEVICES)
  if (why_not.empty()) {
    try {
      auto hosts = std::make_unique<GroupHosts>(
          host_, c10::make_intrusive<::c10d::PrefixStore>(
                     concat(type_name(device), "/", number, "/"), store_));
      return c10::make_intrusive<CudaEngine>(made_group(device, votes), other, std::move(hosts),
                                             host_.getRank(), host_.getSize(), options_,
                                             continuations_);
    } catch (const Error& error) {
      if (const auto failure = host_.failure()) std::rethrow_exception(failure);
      why_not = error.what();
    } catch (const std::exception&) {  // on this rank alone: the others wait for it
      std::rethrow_exception(
          host_.group()->failed("forming", ErrorCode::kSystem, what_of(std::current_exception())));
    }
  }
#else
  static_cast<void>(number);
  static_cast<void>(other);
#endif
  return nullptr;
}

std::string DeviceEngines::made(Type& type, c10::Device device) {
  const std::lock_guard<std::mutex> lock(making_);
  if (type.delegate != nullptr) return "";
  try {
    auto store =
        c10::make_intrusive<::c10d::PrefixStore>(concat("device/", type_name(device), "/"), store_);
    auto one =
        g_device_backends.make(device, store, host_.getRank(), host_.getSize(), options_->timeout);
    type.delegate = c10::make_intrusive<DelegateEngine>(
        std::move(one.backend), device_delegate(one.name), options_, continuations_,
        host_.group()->label(), host_.group());
    return "";
  } catch (const std::exception&) {
    return concat("the backend for tensors on ", type_name(device),
                  " could not be made: ", what_of(std::current_exception()));
  }
}

std::vector<DeviceEngines::Vote> DeviceEngines::votes(c10::Device device, size_t number) {
  const int size = host_.getSize();
  const Vote mine(device, size);
  std::vector<Vote> votes(static_cast<size_t>(size));
  host_.gather_bytes(&mine, votes.data(), sizeof(Vote),
                     mix(mix(0x76f1, static_cast<uint64_t>(device.type())), number),
                     concat("to agree what serves tensors on ", type_name(device), ", device ",
                            number, " of each rank"));
  return votes;
}

std::vector<Engine*> DeviceEngines::all() {
  const std::lock_guard<std::mutex> lock(making_);
  std::vector<Engine*> engines;
  for (Type& type : types_) {
    for (const Slot& slot : type.slots) {
      if (slot.direct != nullptr) engines.push_back(slot.direct.get());
    }
    if (type.delegate != nullptr) engines.push_back(type.delegate.get());
  }
  return engines;
}

}  // namespace fastcomm
