#include "c10d/device_engines.h"

#include <algorithm>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/exception.h"
#include "core/signature.h"

namespace fastcomm {

DeviceBackends g_device_backends;

namespace {

/// What a rank says of its device.
struct Vote {
  char has_backend = 0;
  char text[255] = {};  // the device's name, or why there is no backend

  Vote() = default;
  Vote(bool has, const std::string& words) : has_backend(has ? 1 : 0) {
    std::memcpy(text, words.data(), std::min(words.size(), sizeof(text) - 1));
  }
};

std::string type_name(c10::Device device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

bool known(c10::Device device) {
  return g_device_backends.known && g_device_backends.known(device.type());
}

Vote vote(c10::Device device) {
  try {
    if (known(device)) return {true, g_device_backends.identify(device)};
    return {false, concat("torch has no backend for tensors on ", type_name(device), " here")};
  } catch (const std::exception&) {
    return {false, what_of(std::current_exception())};
  }
}

}  // namespace

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
  if (&engine == &host_ || !host_.coalescing()) return engine;
  auto& delegate = static_cast<DelegateEngine&>(engine);
  if (!delegate.coalescing()) delegate.startCoalescing();
  return engine;
}

std::vector<Engine::WorkPtr> DeviceEngines::end_coalescing() {
  std::vector<Engine::WorkPtr> works;
  for (DelegateEngine* engine : all()) {
    if (engine->coalescing()) works.push_back(engine->endCoalescing());
  }
  return works;
}

Engine& DeviceEngines::agree(Slot& slot, c10::Device device) {
  const std::string reason = why_not(device);
  Engine* engine = &host_;
  if (reason.empty()) {
    const std::string problem = made(slot, device);
    if (!problem.empty()) {  // the others have theirs
      std::rethrow_exception(host_.group()->failed("forming", ErrorCode::kSystem, problem));
    }
    engine = slot.delegate.get();
  } else if (host_.getRank() == 0 && g_device_backends.say_why_not) {
    g_device_backends.say_why_not(device.type(), host_.getSize(), reason);
  }
  slot.messages.store(engine, std::memory_order_release);
  slot.collectives.store(engine, std::memory_order_release);
  return *engine;
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

std::string DeviceEngines::why_not(c10::Device device) {
  const int size = host_.getSize();
  const Vote mine = vote(device);
  std::vector<Vote> votes(static_cast<size_t>(size));
  host_.gather_bytes(&mine, votes.data(), sizeof(Vote),
                     mix(0x76f1, static_cast<uint64_t>(device.type())),
                     concat("to agree what serves tensors on ", type_name(device)));
  for (int rank = 0; rank < size; ++rank) {
    const Vote& each = votes[static_cast<size_t>(rank)];
    if (each.has_backend == 0) return concat("rank ", rank, ": ", each.text);
    for (int other = 0; other < rank; ++other) {
      if (std::strcmp(each.text, votes[static_cast<size_t>(other)].text) == 0) {
        return concat("ranks ", other, " and ", rank, " share a device, ", each.text);
      }
    }
  }
  return "";
}

std::vector<DelegateEngine*> DeviceEngines::all() {
  const std::lock_guard<std::mutex> lock(making_);
  std::vector<DelegateEngine*> engines;
  for (Slot& slot : slots_) {
    if (slot.delegate != nullptr) engines.push_back(slot.delegate.get());
  }
  return engines;
}

}  // namespace fastcomm
