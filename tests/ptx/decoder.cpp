#include "decoder.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "machine.h"

namespace fastcomm::ptx {
namespace {

constexpr uint64_t kPoison = 0xa5a5a5a5a5a5a5a5;  // in registers that nothing has been written to

const std::map<std::string_view, uint32_t> kBytes = {
    {"pred", 1}, {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2}, {"u16", 2},
    {"s16", 2},  {"f16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4}, {"f32", 4},
    {"b64", 8},  {"u64", 8}, {"s64", 8}, {"f64", 8}};

const std::map<std::string_view, Given> kSpecial = {
    {"%tid.x", [](const Thread& t, uint32_t) -> uint64_t { return t.index; }},
    {"%ntid.x", [](const Thread& t, uint32_t) -> uint64_t { return t.block->launch->threads; }},
    {"%ctaid.x", [](const Thread& t, uint32_t) -> uint64_t { return t.block->index; }},
    {"%nctaid.x", [](const Thread& t, uint32_t) -> uint64_t { return t.block->launch->blocks; }},
    {"%laneid", [](const Thread& t, uint32_t) -> uint64_t { return t.index % 32; }}};

uint64_t address_of_parameter(const Thread& thread, uint32_t index) {
  return reinterpret_cast<uint64_t>(thread.frame->parameters[index]);
}
uint64_t address_of_outgoing(const Thread& thread, uint32_t offset) {
  return reinterpret_cast<uint64_t>(thread.frame->outgoing.data() + offset);
}

/// The bits of a literal number; empty if it is none.
std::optional<uint64_t> literal(std::string_view text) {
  const std::string word(text);
  const char* const begin = word.c_str();
  char* end = nullptr;
  uint64_t value = 0;
  if (text.empty() || (text[0] != '-' && (text[0] < '0' || text[0] > '9'))) return {};
  if (text.size() > 1 && std::string_view("fFdD").find(text[1]) != text.npos) {
    value = std::strtoull(begin + 2, &end, 16);
  } else if (text[0] == '-') {
    value = static_cast<uint64_t>(std::strtoll(begin, &end, 0));
  } else {
    value = std::strtoull(begin, &end, 0);
    if (*end == 'U') ++end;
  }
  if (*end != '\0') return {};
  return value;
}

}  // namespace

uint32_t bytes_of(std::string_view type) {
  const auto found = kBytes.find(type);
  return found == kBytes.end() ? 0 : found->second;
}

Decoder::Decoder(Function& function, Program& file) : to_(function), file_(file), scopes_(1) {
  for (const auto& [name, value] : kSpecial) {
    scopes_[0].names[std::string(name)] = {kNone, value};
  }
}

void Decoder::unknown(const char* what, std::string_view which) const {
  throw Unknown("PTX that is not understood: " + std::string(what) + " '" + std::string(which) +
                "' in '" + std::string(now_) + "' of " + to_.name);
}

void Decoder::decode(std::string_view parameters, std::string_view body) {
  for (const std::string_view each : split(parameters, ',')) {
    now_ = each;
    const auto index = static_cast<uint32_t>(to_.parameters.variables.size());
    scopes_[0].names[declare(each, to_.parameters)] = {kNone, address_of_parameter, index};
  }
  // A statement is "{", "}", "label:" or what a semicolon ends, which may have braces inside.
  for (size_t begin = 0, end = 0; (end = body.find_first_of("{}:;", end)) != body.npos; ++end) {
    const char c = body[end];
    const std::string_view before = trimmed(body.substr(begin, end - begin));
    const bool names = !before.empty() && before.find_first_of(" \t\n.") == before.npos;
    if (c == ';' || (c == ':' ? names : before.empty())) {
      statement(c == ';' ? before : trimmed(body.substr(begin, end + 1 - begin)));
      begin = end + 1;
    }
  }
  statement("ret");  // behind the last one
  to_.text.back() = "}";
  if (to_.registers.size() >= kNone) unknown("number of registers", "");
  for (const auto& [number, label] : branches_) {
    const auto found = labels_.find(label);
    if (found == labels_.end()) unknown("label", label);
    to_.code[number].target = found->second;
  }
  share_registers();
}

/// Registers that are used between two labels alone, where they are first written, take turns: a
/// thread then has so few that they stay in the cache.
void Decoder::share_registers() {
  struct Uses {
    uint32_t first_block = 0;  // 0: not used yet
    uint32_t last = 0;         // operation
    bool between_labels = true;
  };
  std::vector<Uses> uses(to_.registers.size());
  std::vector<bool> is_label(to_.code.size() + 1);
  for (const auto& [name, place] : labels_) is_label[place] = true;
  uint32_t block = 1;
  for (uint32_t i = 0; i < to_.code.size(); ++i) {
    const Operation& each = to_.code[i];
    if (is_label[i]) ++block;
    const auto note = [&](Register number, bool written) {
      if (number == kNone) return;
      Uses& use = uses[number];
      if (use.first_block == 0) use = {block, i, written};
      if (use.first_block != block) use.between_labels = false;
      use.last = i;
    };
    for (const Register number : each.from) note(number, false);
    note(each.guard, false);
    for (const Register number : each.to) note(number, each.guard == kNone);
  }
  std::vector<Register> numbers(uses.size(), kNone);
  const std::vector<uint64_t> values = std::exchange(to_.registers, {});
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].between_labels && uses[i].first_block != 0) continue;
    numbers[i] = new_register(values[i]);
  }
  std::vector<Register> spare;
  for (uint32_t i = 0; i < to_.code.size(); ++i) {
    Operation& each = to_.code[i];
    std::vector<Register> free;  // behind this operation
    const auto renumber = [&](Register& number) {
      if (number == kNone) return;
      Register& now = numbers[number];
      if (now == kNone) {
        if (spare.empty()) spare.push_back(new_register(kPoison));
        now = spare.back();
        spare.pop_back();
      }
      if (uses[number].between_labels && uses[number].last == i) {
        uses[number].between_labels = false;  // once
        free.push_back(now);
      }
      number = now;
    };
    for (Register& number : each.from) renumber(number);
    renumber(each.guard);
    for (Register& number : each.to) renumber(number);
    spare.insert(spare.end(), free.begin(), free.end());
  }
  for (GivenRegister& each : to_.given) each.number = numbers[each.number];
  for (Call& each : to_.calls) {
    for (Register& number : each.arguments) number = numbers[number];
  }
}

void Decoder::statement(std::string_view text) {
  now_ = text;
  if (text.empty()) return;
  if (text == "{") return scopes_.emplace_back(), void();
  if (text == "}") return scopes_.pop_back();
  if (text.back() == ':') {
    labels_[std::string(text.substr(0, text.size() - 1))] = static_cast<uint32_t>(to_.code.size());
  } else if (text[0] == '.') {
    directive(text);
  } else {
    instruction(text);
  }
}

void Decoder::directive(std::string_view text) {
  std::string_view rest = text;
  const std::string_view word = take_word(rest);
  if (word == ".reg") {
    declare_registers(rest);
  } else if (word == ".shared") {
    declare_shared(text, scopes_.back());
  } else if (word == ".param") {
    const std::string name = declare(text, to_.outgoing);
    const uint32_t offset = to_.outgoing.variables.back().offset;
    scopes_.back().names[name] = {kNone, address_of_outgoing, offset};
  } else if (word != ".pragma") {
    unknown("directive", word);
  }
}

void Decoder::declare_shared(std::string_view text, Scope& scope) {
  to_.shared.bytes += 64;  // apart from each other, so that a read past the end hits none
  const std::string name = declare(text, to_.shared);
  scope.names[name] = {constant(to_.shared.variables.back().offset)};
}

/// As ".param .align 8 .b8 name[16]", at the end of its area. Returns the name.
std::string Decoder::declare(std::string_view text, Area& area) const {
  std::string_view name;
  uint32_t alignment = 0;
  uint32_t element = 0;
  uint32_t count = 1;
  const auto number = [](std::string_view word) {
    return static_cast<uint32_t>(literal(word).value_or(0));
  };
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = take_word(rest);
    if (word == ".align") {
      alignment = number(take_word(rest));
    } else if (word[0] == '.' && bytes_of(word.substr(1)) != 0) {
      element = bytes_of(word.substr(1));
    } else if (word[0] != '.') {
      name = word.substr(0, word.find('['));
      if (name != word) count = number(inside(word.substr(name.size())));
    } else if (word != ".param" && word != ".shared") {
      unknown("directive", word);
    }
  }
  if (element == 0 || count == 0 || name.empty()) unknown("declaration", text);
  alignment = std::max(alignment, element);
  const uint32_t offset = (area.bytes + alignment - 1) / alignment * alignment;
  area.variables.push_back({offset, element * count});
  area.bytes = offset + element * count;
  return std::string(name);
}

/// As ".b32 %r<84>" or ".pred %p1, %p2".
void Decoder::declare_registers(std::string_view text) {
  const std::string_view type = take_word(text);
  if (type.empty() || bytes_of(type.substr(1)) == 0) unknown("type", type);
  Scope& scope = scopes_.back();
  for (const std::string_view name : split(text, ',')) {
    const std::string_view start = name.substr(0, name.find('<'));
    if (start == name) {
      scope.names[std::string(name)] = {new_register(kPoison)};
      continue;
    }
    const auto count = literal(inside(name.substr(start.size())));
    if (!count) unknown("declaration", name);
    scope.runs[std::string(start)] = {static_cast<uint32_t>(to_.registers.size()), *count};
    to_.registers.insert(to_.registers.end(), *count, kPoison);
  }
}

Register Decoder::new_register(uint64_t value) {
  to_.registers.push_back(value);
  return static_cast<Register>(to_.registers.size() - 1);
}

Register Decoder::constant(uint64_t value) {
  const auto [found, is_new] = constants_.try_emplace(value, 0);
  if (is_new) found->second = new_register(value);
  return found->second;
}

/// The register that holds an operand; of a variable, its address.
Register Decoder::reg(std::string_view operand) {
  if (operand == "_") return new_register(0);  // a result that nobody wants
  if (const auto value = literal(operand)) return constant(*value);
  const size_t digits = operand.find_last_not_of("0123456789") + 1;
  const auto number = literal(operand.substr(digits));
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->names.find(operand);
    if (found != scope->names.end()) {
      auto& [made, value, index] = found->second;
      if (made == kNone) {
        made = new_register(0);
        to_.given.push_back({made, value, index});
      }
      return made;
    }
    const auto run = scope->runs.find(operand.substr(0, digits));
    if (run != scope->runs.end() && number && *number < run->second.count) {
      return static_cast<Register>(run->second.first + *number);
    }
  }
  const std::string_view of_file = file_.shared(operand);
  if (of_file.empty()) unknown("operand", operand);
  declare_shared(of_file, scopes_.front());
  return reg(operand);
}

/// As "[%rd1+8]" or "[name+-4]".
void Decoder::address(std::string_view operand, Operation& made) {
  if (operand.size() < 3 || operand.front() != '[') unknown("address", operand);
  const std::string_view all = inside(operand);
  const std::string_view base = all.substr(0, all.find('+'));
  if (base != all) {
    const auto offset = literal(trimmed(all.substr(base.size() + 1)));
    if (!offset) unknown("address", operand);
    made.offset = static_cast<int64_t>(*offset);
  }
  made.from[0] = reg(trimmed(base));
}

/// As "{%r1, %r2}", or one register. Returns how many there are.
uint8_t Decoder::several(std::string_view operand, Register* numbers) {
  const Words all = operand.front() == '{' ? split(inside(operand), ',') : Words{operand};
  if (all.empty() || all.size() > 4) unknown("operand", operand);
  for (const std::string_view each : all) *numbers++ = reg(each);
  return static_cast<uint8_t>(all.size());
}

}  // namespace fastcomm::ptx
