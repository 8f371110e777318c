// Instructions of PTX as operations; decoder.cpp has declarations and operands.
#include <algorithm>

#include "decoder.h"
#include "text.h"

namespace fastcomm::ptx {
namespace {

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
  if (first == "ld" || first == "st") {
    access(words, operands, made);
  } else if (first == "atom") {
    atomic_access(words, operands, made);
  } else if (first == "bar") {
    barrier(name, operands, made);
  } else if (first == "mov" && (text.find('{') != text.npos || is_clock(operands.back()))) {
    move(name, operands, made);
  } else if (name == "bra" || name == "bra.uni") {
    made.execute = execute_branch;
    branches_.emplace_back(to_.code.size(), operands.at(0));
  } else if (name == "call.uni" || name == "call") {
    call(text, made);
  } else if (name == "ret" || name == "exit") {
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

void Decoder::take_order(Words& modifiers, Operation& made) const {
  static const std::map<std::string_view, Order> orders = {{"relaxed", Order::kRelaxed},
                                                           {"acquire", Order::kAcquire},
                                                           {"release", Order::kRelease},
                                                           {"acq_rel", Order::kAcquireRelease}};
  if (modifiers.empty()) return;
  if (modifiers[0] == "volatile") {
    made.order = Order::kRelaxed;
    modifiers.erase(modifiers.begin());
    return;
  }
  const auto order = orders.find(modifiers[0]);
  if (order == orders.end()) return;
  made.order = order->second;
  modifiers.erase(modifiers.begin());
  const std::string_view scope = modifiers.empty() ? "" : modifiers[0];
  if (scope != "sys" && scope != "gpu" && scope != "cta") unknown("scope", scope);
  made.system = scope == "sys";
  modifiers.erase(modifiers.begin());
}

/// As ld.acquire.sys.global.u32 or st.shared.v4.f32.
void Decoder::access(const Words& name, const Words& operands, Operation& made) {
  static const std::map<std::string_view, Space> spaces = {
      {"global", Space::kGlobal}, {"shared", Space::kShared}, {"param", Space::kParameter}};
  const bool load = name[0] == "ld";
  Words modifiers(name.begin() + 1, name.end());
  take_order(modifiers, made);
  if (made.order == (load ? Order::kRelease : Order::kAcquire)) unknown("order", now_);
  const auto space = modifiers.empty() ? spaces.end() : spaces.find(modifiers[0]);
  if (space != spaces.end()) {
    made.space = space->second;
    modifiers.erase(modifiers.begin());
  }
  if (modifiers.size() == 2 && (modifiers[0] == "v2" || modifiers[0] == "v4")) {
    made.count = static_cast<uint8_t>(modifiers[0][1] - '0');
    modifiers.erase(modifiers.begin());
  }
  if (modifiers.size() != 1 || bytes_of(modifiers[0]) == 0) unknown("modifiers of", now_);
  made.bytes = static_cast<uint8_t>(bytes_of(modifiers[0]));
  made.is_signed = modifiers[0][0] == 's';
  if (operands.size() != 2) unknown("operands", now_);
  size_t count = 0;
  address(operands[load ? 1 : 0], made);
  several(operands[load ? 0 : 1], load ? made.to : made.from + 1, &count);
  if (count != made.count) unknown("operands", now_);
  made.execute = load ? execute_load : execute_store;
}

/// As atom.acq_rel.sys.global.exch.b32.
void Decoder::atomic_access(const Words& name, const Words& operands, Operation& made) {
  Words modifiers(name.begin() + 1, name.end());
  made.order = Order::kRelaxed;
  take_order(modifiers, made);
  if (!modifiers.empty() && (modifiers[0] == "sys" || modifiers[0] == "gpu")) {
    made.system = modifiers[0] == "sys";
    modifiers.erase(modifiers.begin());
  }
  if (!modifiers.empty() && modifiers[0] == "global") {
    made.space = Space::kGlobal;
    modifiers.erase(modifiers.begin());
  }
  if (modifiers.size() != 2) unknown("modifiers of", now_);
  made.bytes = static_cast<uint8_t>(bytes_of(modifiers[1]));
  made.execute = atomic(std::string(modifiers[0]));
  if (made.execute == nullptr || made.bytes < 4) unknown("instruction", now_);
  if (operands.size() != (modifiers[0] == "cas" ? 4 : 3)) unknown("operands", now_);
  made.to[0] = reg(operands[0]);
  address(operands[1], made);
  for (size_t i = 2; i < operands.size(); ++i) made.from[i - 1] = reg(operands[i]);
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
  made.execute = execute_call;
  Call call{find_.function(std::string(words[0])), {}};
  if (!call.function->shared.empty()) unknown("shared memory of", words[0]);
  for (const std::string_view each : split(words[1].substr(1, words[1].size() - 2), ',')) {
    call.arguments.push_back(symbol(each));
    if (call.arguments.back() == kNone) unknown("operand", each);
  }
  if (call.arguments.size() != call.function->parameters.size()) unknown("call", operands);
  made.target = static_cast<uint32_t>(to_.calls.size());
  to_.calls.push_back(std::move(call));
}

void Decoder::move(const std::string& name, const Words& operands, Operation& made) {
  const uint32_t bytes = bytes_of(std::string_view(name).substr(std::min<size_t>(4, name.size())));
  if (bytes == 0) unknown("instruction", name);
  if (operands.size() != 2) unknown("operands", now_);
  size_t parts = 1;
  if (is_clock(operands[1])) {
    made.execute = execute_clock;
    made.to[0] = reg(operands[0]);
  } else if (operands[0].front() == '{') {
    made.execute = execute_unpack;
    several(operands[0], made.to, &parts);
    made.from[0] = reg(operands[1]);
  } else {
    made.execute = execute_pack;
    made.to[0] = reg(operands[0]);
    several(operands[1], made.from, &parts);
  }
  made.count = static_cast<uint8_t>(parts);
  made.bytes = static_cast<uint8_t>(bytes / parts);
}

}  // namespace fastcomm::ptx
