#include "c10d/choose/choose.h"

#include <algorithm>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/choose/out_of_band.h"
#include "c10d/life/exception.h"
#include "c10d/life/links.h"
#include "core/env.h"
#include "core/signature.h"
#include "core/tuning.h"

namespace fastcomm {

DeviceBackends g_device_backends;

namespace {

std::mutex g_registering;
std::vector<EngineMaker> g_registered;

std::vector<EngineMaker> makers() {
  const std::lock_guard<std::mutex> lock(g_registering);
  return g_registered;
}

constexpr size_t kTextBytes = 240;
constexpr uint64_t kSlotBytes = 64 * 1024;  // of short operations between devices, by default

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

bool are_together(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& each) { return each.device() == tensors[0].device(); });
}

/// The reason why none of our kernels serves such devices, if ranks share memory; "" if one may.
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

struct Engines::Vote {
  uint64_t area_bytes = 0;
  uint64_t slot_bytes = 0;
  uint64_t pool_bytes = 0;
  ChosenBy slot_by = ChosenBy::kDefault;
  int blocks = 0;
  char pulls = 0;
  char ipc[16] = {};  // FASTCOMM_IPC
  char has_backend = 0;
  char wants_pinned = 0;         // for its windows
  char device[kTextBytes] = {};  // its name, or the reason why there is no backend
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

  /// Set by the environment, else as tuned (core/tuning.h), else by default.
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
    blocks = env.device_blocks != 0 ? static_cast<int>(env.device_blocks) : tuning.device_blocks;
    pulls = env.device_results == "auto" ? tuning.pulls : env.device_results == "pull";
  }

  /// The reason why the ranks cannot use their backends, or "".
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

void register_engine(EngineMaker maker) {
  const std::lock_guard<std::mutex> lock(g_registering);
  g_registered.push_back(std::move(maker));
}

Engines::Engines(std::shared_ptr<Communicator> group, GroupContext context,
                 c10::intrusive_ptr<::c10d::Store> store)
    : context_(std::move(context)), store_(std::move(store)) {
  int number = 0;
  for (const EngineMaker& maker : makers()) {
    auto own = c10::make_intrusive<::c10d::PrefixStore>(concat("engine/", number++, "/"), store_);
    auto engine = maker(context_, std::move(own));
    if (engine == nullptr) continue;
    host_route_.push_back(engine.get());
    before_.push_back(std::move(engine));
  }
  auto native = std::make_unique<NativeEngine>(std::move(group), context_, store_);
  native_ = native.get();
  host_ = std::move(native);
  host_route_.push_back(native_);
}

Engines::Engines(DelegateEngine::BackendPtr whole, HostRanks host, GroupContext context,
                 const std::string& label, std::string address,
                 c10::intrusive_ptr<::c10d::Store> store)
    : context_(std::move(context)), store_(std::move(store)) {
  auto engine = std::make_unique<DelegateEngine>(
      std::move(whole), gloo_delegate(), context_, label, Beside{},
      form_links(context_.rank, context_.size, context_.options->timeout, store_, label));
  whole_ = engine.get();
  host_ = std::move(engine);
  if (host.group != nullptr) {
    auto hosts = std::make_unique<HostsEngine>(std::move(host.group), std::move(host.layout),
                                               host.thresholds, *whole_, context_);
    hosts_ = hosts.get();
    host_route_.push_back(hosts_);
    before_.push_back(std::move(hosts));
  }
  host_route_.push_back(whole_);
  lanes_ = std::make_unique<GlooLanes>(*whole_, hosts_, context_, std::move(address), store_);
}

Engine& Engines::host_here(Milliseconds timeout) {
  const Continuations::Position position = Continuations::here();
  if (lanes_ == nullptr || position.depth == 0) return *host_;
  return lanes_->at(position, timeout).whole();
}

Engine* Engines::choose(const Request& request) {
  if (lanes_ != nullptr && !request.is_message()) {
    const Continuations::Position position = Continuations::here();
    const bool unset = request.timeout == ::c10d::kUnsetTimeout;
    const Milliseconds timeout = unset ? context_.options->timeout : request.timeout;
    if (position.depth != 0) return lanes_->at(position, timeout).choose(request);
  }
  const at::TensorList tensors = request.decisive();
  const bool host = tensors.empty() || tensors[0].is_cpu() || tensors[0].is_meta() ||
                    Continuations::here().depth != 0 ||
                    (request.is_over_list() && !are_together(tensors));
  if (!host && request.is_message()) return engine_of_message(tensors[0]);
  for (Engine* const engine : host ? host_route_ : route_for(tensors[0])) {
    if (engine->takes(request)) return engine;
  }
  return nullptr;
}

Engines::Route Engines::route_of(c10::Device device) const {
  if (device.is_cpu() || device.is_meta()) return host_route_;
  const Slot* slot = type_of(device).find(device);
  return slot == nullptr ? Route{} : slot->route;
}

std::string Engines::why_not_direct(c10::Device device) const {
  const Slot* slot = type_of(device).find(device);
  return slot == nullptr ? "" : slot->why_not_direct;
}

at::Tensor Engines::shared_empty(c10::Device device, at::IntArrayRef sizes, at::ScalarType dtype,
                                 std::string& why) const {
  if (const Slot* slot = type_of(device).find(device)) {
    Engine& engine = slot->direct == nullptr ? *slot->route.back() : *slot->direct;
    return engine.shared_empty(sizes, dtype, why);
  }
  why = concat("what serves tensors on ", device.str(),
               " is decided at the process group's first collective with one");
  return {};
}

bool Engines::may_coalesce() const { return g_device_backends.any && g_device_backends.any(); }

const Engines::Route& Engines::route_for(const at::Tensor& tensor) {
  Type& type = type_of(tensor.device());
  if (const Slot* slot = type.find(tensor.device())) return slot->route;
  const std::lock_guard<std::mutex> lock(deciding_);
  if (const Slot* slot = type.find(tensor.device())) return slot->route;
  return agree(type, tensor.device()).route;
}

Engine* Engines::engine_of_message(const at::Tensor& tensor) {
  Type& type = type_of(tensor.device());
  if (Engine* engine = type.messages.load(std::memory_order_acquire)) return engine;
  Engine* engine = host_.get();
  if (known(tensor.device())) {
    make(type, tensor.device());
    engine = type.delegate.get();
  }
  // Unless the ranks have agreed meanwhile.
  Engine* none = nullptr;
  type.messages.compare_exchange_strong(none, engine, std::memory_order_acq_rel);
  return type.messages.load(std::memory_order_acquire);
}

const Engines::Slot& Engines::agree(Type& type, c10::Device device) {
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
  Engine* engine = host_.get();
  if (why_not.empty()) {
    make(type, device);
    engine = type.delegate.get();
  }
  if (number == 0) type.messages.store(engine, std::memory_order_release);
  std::string why_not_direct;
  std::unique_ptr<Engine> direct = made_direct(device, number, votes, why_not_direct);
  const bool tells = context_.rank == 0 && number == 0 && !why_not_direct.empty();
  if (tells && !why_not.empty()) {
    if (g_device_backends.say_why_not) {
      g_device_backends.say_why_not(device.type(), context_.size, why_not);
    }
  } else if (tells && votes[0].why_not_direct[0] == '\0' && g_device_backends.say_why_not_direct) {
    g_device_backends.say_why_not_direct(device.type(), context_.size, engine->name(),
                                         why_not_direct);
  }
  // If the first device has no kernels, the answer holds for all devices, and no rank has to ask
  // again.
  const bool of_all = number == 0 && direct == nullptr;
  Route route = host_route_;
  route.pop_back();
  if (hosts_ != nullptr && engine != whole_) route.pop_back();
  if (direct != nullptr) route.push_back(direct.get());
  route.push_back(engine);
  const std::lock_guard<std::mutex> lock(making_);
  const Slot* before = type.agreed.load(std::memory_order_relaxed);
  type.slots.push_back({static_cast<c10::DeviceIndex>(of_all ? -1 : device.index()),
                        std::move(route), std::move(direct), std::move(why_not_direct), before});
  type.agreed.store(&type.slots.back(), std::memory_order_release);
  return type.slots.back();
}

#if defined(FC_DEVICES)
std::shared_ptr<CudaGroup> Engines::made_group(c10::Device device, const std::vector<Vote>& votes) {
  FormingOutOfBand out_of_band(*native_);
  CudaGroup::Options options;
  options.area_bytes = votes[0].area_bytes;
  options.slot_bytes = votes[0].slot_bytes;
  options.slot_by = votes[0].slot_by;
  options.blocks = votes[0].blocks;
  options.pulls = votes[0].pulls != 0;
  options.pool_bytes = votes[0].pool_bytes;
  options.ways = device_ways(votes[0].ipc);
  options.timeout = context_.options->timeout;
  const auto made = [&] {
    return std::make_shared<CudaGroup>(out_of_band, native_->group(), device.index(), options);
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
      if (native_->failure() != nullptr) throw;
      options.why = error.what();
    }
  }
  options.home = WindowHome::kHost;
  std::shared_ptr<CudaGroup> group;
  try {
    group = made();
  } catch (const Error& error) {
    if (native_->failure() != nullptr) throw;
    throw Error(ErrorCode::kSystem,
                concat(options.why, "; through pinned memory of the host: ", error.what()));
  }
  if (!asked && context_.rank == 0 && g_device_backends.say_why_not_direct) {
    g_device_backends.say_why_not_direct(device.type(), context_.size, "pinned memory of the host",
                                         options.why);
  }
  return group;
}
#endif

std::unique_ptr<Engine> Engines::made_direct(c10::Device device, size_t number,
                                             const std::vector<Vote>& votes, std::string& why_not) {
  for (size_t rank = 0; rank < votes.size() && why_not.empty(); ++rank) {
    const char* text = votes[rank].why_not_direct;
    if (*text != '\0') why_not = concat("rank ", rank, ": ", text);
  }
#if defined(FC_DEVICES)
  if (why_not.empty()) {
    try {
      auto out_of_band = std::make_unique<GroupOutOfBand>(
          *native_, c10::make_intrusive<::c10d::PrefixStore>(
                        concat(type_name(device), "/", number, "/"), store_));
      auto group = made_group(device, votes);
      if (ends_long_kernels(device.index()) && g_device_backends.warn_of_display) {
        g_device_backends.warn_of_display(device, context_.options->timeout);
      }
      return std::make_unique<CudaEngine>(std::move(group), std::move(out_of_band), context_);
    } catch (const Error& error) {
      if (const auto failure = native_->failure()) std::rethrow_exception(failure);
      why_not = error.what();
    } catch (const std::exception&) {  // on this rank alone: the others wait for it
      std::rethrow_exception(native_->group()->failed("forming", ErrorCode::kSystem,
                                                      what_of(std::current_exception())));
    }
  }
#else
  static_cast<void>(number);
#endif
  return nullptr;
}

void Engines::make(Type& type, c10::Device device) {
  std::string problem;
  try {
    const std::lock_guard<std::mutex> lock(making_);
    if (type.delegate != nullptr) return;
    auto store =
        c10::make_intrusive<::c10d::PrefixStore>(concat("device/", type_name(device), "/"), store_);
    auto one = g_device_backends.make(device, store, context_.rank, context_.size,
                                      context_.options->timeout);
    Beside beside;
    if (native_ != nullptr) beside.memory = native_->group();
    if (whole_ != nullptr) beside.whole = whole_->delegate();
    type.delegate = std::make_unique<DelegateEngine>(
        std::move(one.backend), device_delegate(one.name), context_, label(), std::move(beside));
    return;
  } catch (const std::exception&) {
    problem = concat("the backend for tensors on ", type_name(device),
                     " could not be made: ", what_of(std::current_exception()));
  }
  if (native_ != nullptr) {  // either tells the others
    std::rethrow_exception(native_->group()->failed("forming", ErrorCode::kSystem, problem));
  }
  std::rethrow_exception(whole_->delegate()->give_up(
      {"forming", Request::kNoRank, whole_->submitted()}, ErrorCode::kSystem, problem));
}

std::vector<Engines::Vote> Engines::votes(c10::Device device, size_t number) {
  const int size = context_.size;
  Vote mine(device, size);
  if (native_ == nullptr) set_text(mine.why_not_direct, "the ranks do not all share memory");
  std::vector<Vote> votes(static_cast<size_t>(size));
  const std::string purpose = concat("to agree what serves tensors on ", type_name(device),
                                     ", device ", number, " of each rank");
  if (native_ == nullptr) {
    whole_->gather_bytes(&mine, votes.data(), sizeof(Vote));
  } else {
    native_->gather_bytes(&mine, votes.data(), sizeof(Vote),
                          mix(mix(0x76f1, static_cast<uint64_t>(device.type())), number), purpose);
  }
  return votes;
}

const std::string& Engines::label() const {
  return native_ != nullptr ? native_->group()->label() : whole_->delegate()->label();
}

std::vector<Engine*> Engines::others() const {
  std::vector<Engine*> engines;
  for (const auto& each : before_) engines.push_back(each.get());
  if (lanes_ != nullptr) {
    for (Engine* const each : lanes_->engines()) engines.push_back(each);
  }
  const std::lock_guard<std::mutex> lock(making_);
  for (const Type& type : types_) {
    for (const Slot& slot : type.slots) {
      if (slot.direct != nullptr) engines.push_back(slot.direct.get());
    }
    if (type.delegate != nullptr) engines.push_back(type.delegate.get());
  }
  return engines;
}

}  // namespace fastcomm
