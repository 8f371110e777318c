#include "c10d/device_engines.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/exception.h"
#include "c10d/hooks.h"
#include "c10d/store_bootstrap.h"
#include "core/env.h"
#include "core/signature.h"

namespace fastcomm {

DeviceBackends g_device_backends;

namespace {

constexpr size_t kTextBytes = 240;

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

/// Why no kernel of ours serves such devices here; "" if one may.
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

#if defined(FC_DEVICES)
/// What ranks tell each other while they agree, in the order of the group's operations on the host.
class FormingHosts final : public HostExchange {
 public:
  explicit FormingHosts(NativeEngine& host) : host_(host) {}

  std::vector<std::string> all_gather(const std::string& own) override {
    const auto size = static_cast<size_t>(host_.getSize());
    const uint64_t bytes = own.size();
    std::vector<uint64_t> lengths(size);
    gather(&bytes, lengths.data(), sizeof(bytes));
    const size_t most = *std::max_element(lengths.begin(), lengths.end());
    std::string padded = own, all(size * most, '\0');
    padded.resize(most);
    if (most != 0) gather(padded.data(), all.data(), most);
    std::vector<std::string> texts;
    for (size_t rank = 0; rank < size; ++rank) {
      texts.push_back(all.substr(rank * most, lengths[rank]));
    }
    return texts;
  }

 private:
  void gather(const void* own, void* all, size_t bytes) {
    host_.gather_bytes(own, all, bytes, 0x77d2, "to make windows of devices");
  }

  NativeEngine& host_;
};

/// Later: by way of the group's store, so that operations on the host, which another thread may issue meanwhile,
/// come between on one rank and not on the other, and it matters to nobody.
class GroupHosts final : public PoolHosts {
 public:
  GroupHosts(NativeEngine& host, c10::intrusive_ptr<::c10d::Store> store)
      : host_(host), store_(std::move(store)) {}

  /// The first that knows decides, for all: the last who comes, or one who waits no longer.
  bool all_come(uint64_t issued, Milliseconds patience) override {
    times_ = issued == issued_ ? times_ + 1 : 0;
    issued_ = issued;
    front_ = concat("pool/", issued, "/", times_, "/");
    exchanges_ = 0;
    const std::string verdict = front_ + "verdict";
    const auto decide = [&](const std::string& wanted) {
      const std::vector<uint8_t> nothing, own(wanted.begin(), wanted.end());
      const std::vector<uint8_t> said = store_->compareSet(verdict, nothing, own);
      return std::string(said.begin(), said.end()) == "all";
    };
    if (store_->add(front_ + "come", 1) == host_.getSize()) return decide("all");
    const Deadline end = Clock::now() + patience;
    while (!store_->check({verdict})) {
      if (Clock::now() > end) return decide("not all");
      std::this_thread::sleep_for(Milliseconds(1));
    }
    return decide("");
  }

  /// Behind all_come(). Where it raises, the group is given up.
  std::vector<std::string> all_gather(const std::string& own) override {
    std::optional<Deadline> gone_since;
    StoreBootstrap told(store_, [&] {
      if (const auto why = host_.group()->stalled("forming", gone_since)) {
        std::rethrow_exception(why);
      }
      if (g_interrupt_check) g_interrupt_check();
    });
    const std::string front = concat(front_, exchanges_++, "/");
    const Deadline end = deadline_after(host_.getBackendOptions()->timeout);
    std::vector<std::string> texts;
    try {
      told.set(front + std::to_string(host_.getRank()), own);
      for (int rank = 0; rank < host_.getSize(); ++rank) {
        texts.push_back(told.get(front + std::to_string(rank), end));
      }
    } catch (const Error& error) {
      if (host_.failure() != nullptr) throw;
      std::rethrow_exception(host_.group()->failed(
          "forming", error.code(),
          concat("ranks make memory for tensors on devices together: ", error.what())));
    } catch (...) {  // Ctrl-C, or the store: the others wait for this rank
      host_.group()->abort(concat("rank ", host_.getRank(),
                                  " did not get to the end of making memory for tensors: ",
                                  what_of(std::current_exception())));
      throw;
    }
    return texts;
  }

 private:
  NativeEngine& host_;
  const c10::intrusive_ptr<::c10d::Store> store_;
  uint64_t issued_ = 0;  // where this rank was last, and how often before
  int times_ = -1;
  std::string front_;  // of the store's keys there
  int exchanges_ = 0;
};
#endif

}  // namespace

struct DeviceEngines::Vote {
  uint64_t area_bytes = 0;
  uint64_t pool_bytes = 0;
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
  Slot& slot = slots_.at(static_cast<size_t>(tensor.device().type()));
  if (Engine* engine = slot.collectives.load(std::memory_order_acquire)) return coalesced(*engine);
  const std::lock_guard<std::mutex> lock(deciding_);
  if (Engine* engine = slot.collectives.load(std::memory_order_acquire)) return coalesced(*engine);
  return coalesced(agree(slot, tensor.device()));
}

Engine& DeviceEngines::for_message(const at::Tensor& tensor) {
  if (Continuations::here().depth != 0) return host_;
  Slot& slot = slots_.at(static_cast<size_t>(tensor.device().type()));
  if (Engine* engine = slot.messages.load(std::memory_order_acquire)) return coalesced(*engine);
  Engine* engine = &host_;
  if (known(tensor.device())) {
    const std::string problem = made(slot, tensor.device());
    if (!problem.empty()) throw Error(ErrorCode::kSystem, problem);
    engine = slot.delegate.get();
  }
  // Unless the ranks have agreed meanwhile.
  Engine* none = nullptr;
  slot.messages.compare_exchange_strong(none, engine, std::memory_order_acq_rel);
  return coalesced(*slot.messages.load(std::memory_order_acquire));
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

Engine& DeviceEngines::agree(Slot& slot, c10::Device device) {
#if defined(FC_DEVICES)
  if (device.type() == kAccelerator && is_capturing(device.index())) {
    throw Error(ErrorCode::kUnsupported,
                "the first collective of a process group on devices cannot be captured into a "
                "graph: the ranks agree then what serves them. Run one before the capture");
  }
#endif
  const std::vector<Vote> votes = this->votes(device);
  const std::string why_not = Vote::why_no_backend(votes);
  Engine* engine = &host_;
  if (why_not.empty()) {
    const std::string problem = made(slot, device);
    if (!problem.empty()) {  // the others have theirs
      std::rethrow_exception(host_.group()->failed("forming", ErrorCode::kSystem, problem));
    }
    engine = slot.delegate.get();
  }
  slot.messages.store(engine, std::memory_order_release);
  const std::string why_not_direct = made_direct(slot, device, votes, *engine);
  const bool tells = host_.getRank() == 0 && !why_not_direct.empty();
  if (tells && !why_not.empty()) {
    if (g_device_backends.say_why_not) {
      g_device_backends.say_why_not(device.type(), host_.getSize(), why_not);
    }
  } else if (tells && votes[0].why_not_direct[0] == '\0' && g_device_backends.say_why_not_direct) {
    g_device_backends.say_why_not_direct(device.type(), host_.getSize(), engine->name(),
                                         why_not_direct);
  }
  if (why_not_direct.empty()) engine = slot.direct.get();
  slot.collectives.store(engine, std::memory_order_release);
  return *engine;
}

#if defined(FC_DEVICES)
std::shared_ptr<CudaGroup> DeviceEngines::made_group(c10::Device device,
                                                     const std::vector<Vote>& votes) {
  FormingHosts hosts(host_);
  CudaGroup::Options options;
  options.area_bytes = votes[0].area_bytes;
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

std::string DeviceEngines::made_direct(Slot& slot, c10::Device device,
                                       const std::vector<Vote>& votes, Engine& other) {
  std::string why_not;
  for (size_t rank = 0; rank < votes.size() && why_not.empty(); ++rank) {
    const char* text = votes[rank].why_not_direct;
    if (*text != '\0') why_not = concat("rank ", rank, ": ", text);
  }
#if defined(FC_DEVICES)
  c10::intrusive_ptr<Engine> engine;
  if (why_not.empty()) {
    try {
      auto hosts = std::make_unique<GroupHosts>(
          host_, c10::make_intrusive<::c10d::PrefixStore>(type_name(device) + "/", store_));
      engine = c10::make_intrusive<CudaEngine>(made_group(device, votes), other, std::move(hosts),
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
  const std::lock_guard<std::mutex> lock(making_);
  slot.direct = std::move(engine);
#else
  static_cast<void>(other);
  const std::lock_guard<std::mutex> lock(making_);
#endif
  slot.why_not_direct = why_not;
  return why_not;
}

std::string DeviceEngines::made(Slot& slot, c10::Device device) {
  const std::lock_guard<std::mutex> lock(making_);
  if (slot.delegate != nullptr) return "";
  try {
    auto store =
        c10::make_intrusive<::c10d::PrefixStore>(concat("device/", type_name(device), "/"), store_);
    auto one =
        g_device_backends.make(device, store, host_.getRank(), host_.getSize(), options_->timeout);
    slot.delegate = c10::make_intrusive<DelegateEngine>(
        std::move(one.backend), device_delegate(one.name), options_, continuations_, host_.group());
    return "";
  } catch (const std::exception&) {
    return concat("the backend for tensors on ", type_name(device),
                  " could not be made: ", what_of(std::current_exception()));
  }
}

std::vector<DeviceEngines::Vote> DeviceEngines::votes(c10::Device device) {
  const int size = host_.getSize();
  const Vote mine(device, size);
  std::vector<Vote> votes(static_cast<size_t>(size));
  host_.gather_bytes(&mine, votes.data(), sizeof(Vote),
                     mix(0x76f1, static_cast<uint64_t>(device.type())),
                     concat("to agree what serves tensors on ", type_name(device)));
  return votes;
}

std::vector<Engine*> DeviceEngines::all() {
  const std::lock_guard<std::mutex> lock(making_);
  std::vector<Engine*> engines;
  for (Slot& slot : slots_) {
    if (slot.direct != nullptr) engines.push_back(slot.direct.get());
    if (slot.delegate != nullptr) engines.push_back(slot.delegate.get());
  }
  return engines;
}

std::string DeviceEngines::why_not_direct(c10::DeviceType type) const {
  const std::lock_guard<std::mutex> lock(making_);
  return slots_.at(static_cast<size_t>(type)).why_not_direct;
}

}  // namespace fastcomm
