#include "ops/random_streams.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <utility>

namespace fastcomm {
namespace {

// A key that no tensor has and that torch uses in tests alone. In a thread that includes it,
// operators with a generator among their arguments come to `draw` first; for all others the
// dispatcher skips it, at no cost.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
// The same below dispatch modes: while a mode handles a call, torch leaves out the keys before
// modes. A thread includes it only for calls that draw, if modes of the user's see them: since it
// belongs to backends, torch takes it for one when it looks for kernels that serve all of them.
constexpr auto kKeyBelowModes = c10::DispatchKey::CustomRNGKeyId;

/// A thread's place in passes that may be nested.
struct Seat {
  std::shared_ptr<RandomPass> pass;
  int64_t part;
  bool key_before;
  std::unique_ptr<Seat> outer;
};

thread_local std::unique_ptr<Seat> seat;

bool is_generator(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return is_generator(*optional->getElementType());
  }
  return type.kind() == c10::TypeKind::GeneratorType;
}

bool has_generator(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (is_generator(*argument.type())) return true;
  }
  return false;
}

/// True if a call with these arguments draws on the CPU: a named device counts before those of
/// tensors.
bool draws_on_cpu(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> found;
  for (const auto& argument : arguments) {
    if (argument.isDevice()) return argument.toDevice().is_cpu();
    if (!found && argument.isTensor() && argument.toTensor().defined()) {
      found = argument.toTensor().device();
    }
  }
  return !found || found->is_cpu();
}

/// True if the user's modes are to see a call, and no graph is being traced, which must not hold a
/// generator.
bool modes_only_watch() {
  using Modes = c10::impl::TorchDispatchModeTLS;
  using Infra = c10::impl::TorchDispatchModeKey;
  return Modes::any_modes_set(true) && !Modes::get_mode(Infra::FAKE) &&
         !Modes::get_mode(Infra::PROXY) && !Modes::get_mode(Infra::FUNCTIONAL);
}

/// Calls an operator that draws, after this key; under modes, with the other one.
void pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (seat && modes_only_watch()) {
    const c10::impl::IncludeDispatchKeyGuard guard(kKeyBelowModes);
    op.redispatchBoxed(keys & after, stack);
  } else {
    op.redispatchBoxed(keys & after, stack);
  }
}

/// Hands the thread's stream to an operator that would take torch's default generator.
void hand_out(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t begin = stack->size() - arguments.size();
  if (seat && draws_on_cpu(c10::ArrayRef<c10::IValue>(stack->data() + begin, arguments.size()))) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_generator(*arguments[i].type())) continue;
      c10::IValue& given = (*stack)[begin + i];
      if (given.isNone() || !given.toGenerator().defined() ||
          given.toGenerator() == at::detail::getDefaultCPUGenerator()) {
        given = random_generator();
      }
    }
  }
}

void draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  // Modes see the unchanged call.
  if (!c10::impl::TorchDispatchModeTLS::any_modes_set()) hand_out(op, stack);
  pass_on(op, keys, stack);
}

void draw_below_modes(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  hand_out(op, stack);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKeyBelowModes),
                     stack);
}

/// Registers `draw` for all operators of torch that take a generator; once, at the first pass.
void intercept() {
  static const bool done = [] {
    // Never destroyed: the dispatcher may be gone before.
    const auto library_of = [](const char* space, c10::DispatchKey key) {
      return new torch::Library(torch::Library::IMPL, space, key, __FILE__,
                                static_cast<uint32_t>(__LINE__));
    };
    for (const auto key : {kKey, kKeyBelowModes}) {
      library_of("_", key)->fallback(torch::CppFunction::makeFallthrough());
    }
    auto* library = library_of("aten", kKey);
    auto* below_modes = library_of("aten", kKeyBelowModes);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace() != std::optional<std::string_view>("aten")) continue;
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      const std::string full =
          name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      if (has_generator(op->schema())) {
        library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&draw>());
        below_modes->impl(full.c_str(),
                          torch::CppFunction::makeFromBoxedFunction<&draw_below_modes>());
      } else if (op->hasTag(
                     at::Tag::nondeterministic_seeded)) {  // such as rand(): calls the others
        library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&pass_on>());
      }
    }
    return true;
  }();
  static_cast<void>(done);
}

RandomState read(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  auto* own = generator.get<at::CPUGeneratorImpl>();
  return {own->engine().data(), own->next_float_normal_sample(), own->next_double_normal_sample()};
}

bool same(const RandomState& a, const RandomState& b) {
  return a.engine.seed_ == b.engine.seed_ && a.engine.left_ == b.engine.left_ &&
         a.engine.next_ == b.engine.next_ && a.engine.state_ == b.engine.state_ &&
         a.next_float == b.next_float && a.next_double == b.next_double;
}

/// SplitMix64.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

RandomPass::RandomPass() : own_(random_generator()), begin_(read(own_)) { intercept(); }

void RandomPass::enter(int64_t part) {
  const bool key_before = c10::impl::tls_is_dispatch_key_included(kKey);
  seat = std::make_unique<Seat>(Seat{shared_from_this(), part, key_before, std::move(seat)});
  // In part 0, too: compiled code is guarded by the keys of its thread, and serves all parts.
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

void RandomPass::leave() {
  TORCH_CHECK(seat, "RandomPass.leave() without enter() in this thread");
  c10::impl::tls_set_dispatch_key_included(kKey, seat->key_before);
  std::unique_ptr<Seat> outer = std::move(seat->outer);
  seat = std::move(outer);
}

void RandomPass::settle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  bool drawn = false;
  for (const auto& [part, stream] : streams_) drawn = drawn || !same(read(stream), derived(part));
  if (!drawn || !same(read(own_), begin_)) return;
  const std::lock_guard<std::mutex> generator_lock(own_.mutex());
  own_.get<at::CPUGeneratorImpl>()->random();
}

at::Generator RandomPass::stream(int64_t part) {
  if (part == 0) return own_;
  const std::lock_guard<std::mutex> lock(mutex_);
  at::Generator& stream = streams_[part];
  if (!stream.defined()) {
    stream = at::detail::createCPUGenerator();
    at::mt19937 engine;
    engine.set_data(derived(part).engine);
    stream.get<at::CPUGeneratorImpl>()->set_engine(engine);
  }
  return stream;
}

/// A full state of 624 words, not a seed: torch's engine uses 32 bits of a seed, and streams would
/// meet.
RandomState RandomPass::derived(int64_t part) const {
  uint64_t hash = 0;
  for (const uint32_t word : begin_.engine.state_) hash = mixed(hash ^ word);
  hash = mixed(hash ^ static_cast<uint64_t>(begin_.engine.left_));
  hash = mixed(hash ^ begin_.engine.next_);
  // A kept normal number changes nothing else once it is used up.
  hash = mixed(hash ^ ((begin_.next_float ? 1U : 0U) | (begin_.next_double ? 2U : 0U)));
  hash = mixed(hash ^ static_cast<uint64_t>(part));
  RandomState result{begin_.engine, std::nullopt, std::nullopt};  // with the user's seed
  for (uint32_t& word : result.engine.state_) {
    hash = mixed(hash);
    word = static_cast<uint32_t>(hash >> 32);
  }
  result.engine.left_ = 1;
  result.engine.next_ = 0;
  result.engine.seeded_ = true;
  return result;
}

at::Generator random_generator() {
  return seat ? seat->pass->stream(seat->part) : at::detail::getDefaultCPUGenerator();
}

}  // namespace fastcomm
