// Instructions of PTX as operations; decoder.cpp has declarations and operands.
#include <algorithm>
#include <optional>

#include "decoder.h"
#include "machine.h"

namespace fastcomm::ptx {
namespace {

using Words = std::vector<std::string_view>;
template <class T>
using Meanings = std::map<std::string_view, T>;

const Meanings<Order> kOrders = {{"relaxed", Order::kRelaxed},
                                 {"acquire", Order::kAcquire},
                                 {"release", Order::kRelease},
                                 {"acq_rel", Order::kAcquireRelease}};
const Meanings<bool> kScopes = {{"sys", true}, {"gpu", false}, {"cta", false}};  // all devices
const Meanings<Space> kSpaces = {
    {"global", Space::kGlobal}, {"shared", Space::kShared}, {"param", Space::kParameter}};
const Meanings<uint8_t> kCounts = {{"v2", 2}, {"v4", 4}};
const Meanings<bool> kExchange = {{"exch", true}};

/// Takes the first modifier if it has one of these meanings.
template <class T>
std::optional<T> take(Words& modifiers, const Meanings<T>& meanings) {
  const auto found = modifiers.empty() ? meanings.end() : meanings.find(modifiers.front());
  if (found == meanings.end()) return {};
  modifiers.erase(modifiers.begin());
  return found->second;
}

/// What accesses memory, and the orders that it may have.
struct Access {
  Execute execute;
  std::vector<Order> orders;
};
const std::map<std::string_view, Access> kAccesses = {
    {"ld", {execute_load, {Order::kWeak, Order::kRelaxed, Order::kAcquire}}},
    {"st", {execute_store, {Order::kWeak, Order::kRelaxed, Order::kRelease}}},
    {"atom", {execute_exchange, {Order::kRelaxed, Order::kAcquireRelease}}}};

bool is_clock(std::string_view name) { return name == "%globaltimer" || name == "%clock64"; }

}  // namespace

void Decoder::instruction(std::string_view text) {
  Operation made;
  if (text[0] == '@') {
    std::string_view guard = take_word(text).substr(1);
    made.unless = guard[0] == '!';
    if (made.unless) guard.remove_prefix(1);
    made.guard = reg(guard);
  }
  const std::string name(take_word(text));
  const Words operands = split(text, ',');
  const Words words = split(name, '.');
  const std::string_view first = words[0];
  if (kAccesses.count(first) != 0) {
    access(words, operands, made);
  } else if (first == "bar") {
    barrier(name, operands, made);
  } else if (first == "mov" && (text.find('{') != text.npos || is_clock(operands.back()))) {
    move(name, operands, made);
  } else if (name == "bra" || name == "bra.uni") {
    made.execute = execute_branch;
    branches_.emplace_back(to_.code.size(), operands.at(0));
  } else if (name == "call.uni") {
    call(text, made);
  } else if (name == "ret") {
    made.execute = execute_return;
  } else if (name == "nanosleep.u32") {
    made.execute = execute_yield;
  } else {
    made.execute = arithmetic(name);
    if (made.execute == nullptr) unknown("instruction", name);
    if (operands.size() < 2 || operands.size() > 5) unknown("operands", text);
    made.to[0] = reg(operands[0]);
    for (size_t i = 1; i < operands.size(); ++i) made.from[i - 1] = reg(operands[i]);
  }
  to_.code.push_back(made);
  to_.text.push_back(now_);
}

/// As ld.acquire.sys.global.u32, st.shared.v4.f32 or atom.acq_rel.gpu.global.exch.b32.
void Decoder::access(const Words& name, const Words& operands, Operation& made) {
  const Access& kind = kAccesses.at(name[0]);
  Words modifiers(name.begin() + 1, name.end());
  made.execute = kind.execute;
  made.order = take(modifiers, kOrders).value_or(Order::kWeak);
  if (std::count(kind.orders.begin(), kind.orders.end(), made.order) == 0) unknown("order", now_);
  if (made.order != Order::kWeak) {
    const auto everywhere = take(modifiers, kScopes);
    if (!everywhere) unknown("scope", modifiers.empty() ? "" : modifiers[0]);
    if (!*everywhere) made.order = Order::kRelaxed;
  }
  made.space = take(modifiers, kSpaces).value_or(Space::kGeneric);
  const bool exchanges = kind.execute == execute_exchange;
  if (exchanges && !take(modifiers, kExchange)) unknown("instruction", now_);
  if (!exchanges) made.count = take(modifiers, kCounts).value_or(1);
  if (modifiers.size() != 1 || bytes_of(modifiers[0]) == 0) unknown("modifiers of", now_);
  made.bytes = static_cast<uint8_t>(bytes_of(modifiers[0]));
  made.is_signed = modifiers[0][0] == 's';
  if (operands.size() != (exchanges ? 3 : 2)) unknown("operands", now_);
  const bool stores = kind.execute == execute_store;
  address(operands[stores ? 0 : 1], made);
  const uint8_t count = several(operands[stores ? 1 : 0], stores ? made.from + 1 : made.to);
  if (count != made.count) unknown("operands", now_);
  if (exchanges) made.from[1] = reg(operands[2]);
}

void Decoder::barrier(const std::string& name, const Words& operands, Operation& made) {
  const bool votes = name == "bar.red.and.pred";
  if (!votes && name != "bar.sync") unknown("instruction", name);
  if (operands.size() != (votes ? 3 : 1) || operands[votes ? 1 : 0] != "0") {
    unknown("operands", now_);
  }
  made.execute = execute_barrier;
  made.to[0] = votes ? reg(operands[0]) : new_register(0);
  made.from[0] = votes ? reg(operands[2]) : constant(1);
}

/// As "name, (param0, param1)".
void Decoder::call(std::string_view operands, Operation& made) {
  const Words words = split(operands, ',');
  if (words.size() != 2 || words[1].front() != '(') unknown("call", operands);
  Call call{&file_.function(std::string(words[0])), {}};
  if (!call.function->shared.variables.empty()) unknown("shared memory of", words[0]);
  for (const auto each : split(inside(words[1]), ',')) call.arguments.push_back(reg(each));
  if (call.arguments.size() != call.function->parameters.variables.size()) {
    unknown("call", operands);
  }
  made.execute = execute_call;
  made.target = static_cast<uint32_t>(to_.calls.size());
  to_.calls.push_back(std::move(call));
}

/// As mov.b64 {%r1, %r2}, %rd1, or the other way round; or of a clock.
void Decoder::move(const std::string& name, const Words& operands, Operation& made) {
  const uint32_t bytes = bytes_of(std::string_view(name).substr(std::min<size_t>(4, name.size())));
  if (bytes == 0) unknown("instruction", name);
  if (operands.size() != 2) unknown("operands", now_);
  const bool clock = is_clock(operands[1]);
  const bool unpacks = operands[0].front() == '{';
  const uint8_t parts = several(operands[0], made.to);
  const uint8_t sources = clock ? 1 : several(operands[1], made.from);
  if (std::min(parts, sources) != 1) unknown("operands", now_);
  made.execute = clock ? execute_clock : unpacks ? execute_unpack : execute_pack;
  made.count = std::max(parts, sources);
  made.bytes = static_cast<uint8_t>(bytes / made.count);
}

}  // namespace fastcomm::ptx
