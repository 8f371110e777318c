#include "decoder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "text.h"

namespace fastcomm::ptx {
namespace {

constexpr uint64_t kPoison = 0xa5a5a5a5a5a5a5a5;  // in registers that nothing has been written to

const std::map<std::string_view, uint32_t> kBytes = {
    {"pred", 1}, {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2}, {"u16", 2},
    {"s16", 2},  {"f16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4}, {"f32", 4},
    {"b64", 8},  {"u64", 8}, {"s64", 8}, {"f64", 8}};

const std::map<std::string_view, Given> kGiven = {
    {"%tid.x", Given::kThread},    {"%ntid.x", Given::kThreads}, {"%ctaid.x", Given::kBlock},
    {"%nctaid.x", Given::kBlocks}, {"%laneid", Given::kLane},
};

/// The bits of a literal number; empty if it is none.
std::optional<uint64_t> literal(std::string_view text) {
  const std::string word(text);
  const char* const begin = word.c_str();
  char* end = nullptr;
  uint64_t value = 0;
  if (starts_with(text, "0f") || starts_with(text, "0F") || starts_with(text, "0d") ||
      starts_with(text, "0D")) {
    value = std::strtoull(begin + 2, &end, 16);
  } else if (starts_with(text, "-")) {
    value = static_cast<uint64_t>(std::strtoll(begin, &end, 0));
  } else if (!text.empty() && std::isdigit(static_cast<unsigned char>(text[0]))) {
    value = std::strtoull(begin, &end, 0);
    if (*end == 'U') ++end;
  }
  if (end == nullptr || *end != '\0') return {};
  return value;
}

}  // namespace

uint32_t bytes_of(std::string_view type) {
  const auto found = kBytes.find(type);
  return found == kBytes.end() ? 0 : found->second;
}

void Decoder::unknown(const char* what, std::string_view which) const {
  throw Unknown("PTX that is not understood: " + std::string(what) + " '" + std::string(which) +
                "' in '" + std::string(now_) + "' of " + to_.name);
}

void Decoder::decode(std::string_view parameters, std::string_view body) {
  scopes_.emplace_back();
  for (const std::string_view each : split(parameters, ',')) {
    now_ = each;
    std::string name;
    const Variable made = declare(each, &to_.parameter_bytes, &name);
    variables_[name] = {Area::kParameter, static_cast<uint32_t>(to_.parameters.size())};
    to_.parameters.push_back(made);
  }
  each_statement(body, [&](std::string_view text) { statement(text); });
  Operation end;  // behind the last statement
  end.execute = execute_return;
  to_.code.push_back(end);
  to_.text.push_back("}");
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
  std::vector<uint64_t> values;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].between_labels && uses[i].first_block != 0) continue;
    numbers[i] = static_cast<Register>(values.size());
    values.push_back(to_.registers[i]);
  }
  std::vector<Register> spare;
  for (uint32_t i = 0; i < to_.code.size(); ++i) {
    Operation& each = to_.code[i];
    std::vector<Register> free;  // behind this operation
    const auto renumber = [&](Register& number) {
      if (number == kNone) return;
      Register& now = numbers[number];
      if (now == kNone && spare.empty()) {
        spare.push_back(static_cast<Register>(values.size()));
        values.push_back(kPoison);
      }
      if (now == kNone) {
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
  to_.registers = std::move(values);
}

void Decoder::statement(std::string_view text) {
  now_ = text;
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
  std::string name;
  if (word == ".reg") {
    declare_registers(rest);
  } else if (word == ".shared") {
    declare_shared(text);
  } else if (word == ".param") {
    const Variable made = declare(text, &to_.outgoing_bytes, &name);
    scopes_.back().outgoing[name] = static_cast<uint32_t>(to_.outgoing.size());
    to_.outgoing.push_back(made);
  } else if (word != ".pragma") {
    unknown("directive", word);
  }
}

void Decoder::declare_shared(std::string_view text) {
  std::string name;
  to_.shared_bytes += 64;  // apart from each other, so that a read past the end hits none
  const Variable made = declare(text, &to_.shared_bytes, &name);
  variables_[name] = {Area::kShared, static_cast<uint32_t>(to_.shared.size())};
  to_.shared.push_back(made);
}

/// As ".param .align 8 .b8 name[16]"; `top` is where its area ends.
Variable Decoder::declare(std::string_view text, uint32_t* top, std::string* name) const {
  uint32_t alignment = 0;
  uint32_t element = 0;
  uint32_t count = 1;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = take_word(rest);
    if (word == ".align") {
      alignment = static_cast<uint32_t>(literal(take_word(rest)).value_or(0));
    } else if (word[0] == '.' && bytes_of(word.substr(1)) != 0) {
      element = bytes_of(word.substr(1));
    } else if (word[0] != '.') {
      const size_t bracket = word.find('[');
      *name = word.substr(0, bracket);
      if (bracket != word.npos) {
        const auto number = literal(word.substr(bracket + 1, word.size() - bracket - 2));
        count = static_cast<uint32_t>(number.value_or(0));
      }
    } else if (word != ".param" && word != ".shared") {
      unknown("directive", word);
    }
  }
  if (element == 0 || count == 0 || name->empty()) unknown("declaration", text);
  alignment = std::max(alignment, element);
  *top = (*top + alignment - 1) / alignment * alignment;
  const Variable made{*top, element * count};
  *top += made.bytes;
  return made;
}

/// As ".b32 %r<84>" or ".pred %p1, %p2".
void Decoder::declare_registers(std::string_view text) {
  const std::string_view type = take_word(text);
  if (type.empty() || bytes_of(type.substr(1)) == 0) unknown("type", type);
  for (const std::string_view name : split(text, ',')) {
    const size_t run = name.find('<');
    if (run == name.npos) {
      scopes_.back().registers[std::string(name)] = new_register(kPoison);
      continue;
    }
    const auto count = literal(name.substr(run + 1, name.size() - run - 2));
    if (!count) unknown("declaration", name);
    const auto first = static_cast<uint32_t>(to_.registers.size());
    to_.registers.insert(to_.registers.end(), *count, kPoison);
    scopes_.back().runs[std::string(name.substr(0, run))] = {first, static_cast<uint32_t>(*count)};
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

Register Decoder::given(Given what, uint32_t index) {
  const auto [found, is_new] = givens_.try_emplace({what, index}, 0);
  if (is_new) {
    found->second = new_register(0);
    to_.given.push_back({found->second, what, index});
  }
  return found->second;
}

Register Decoder::declared(std::string_view name) const {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  const auto number = literal(name.substr(digits));
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto alone = scope->registers.find(name);
    if (alone != scope->registers.end()) return alone->second;
    const auto run = scope->runs.find(name.substr(0, digits));
    if (run != scope->runs.end() && number && *number < run->second.second) {
      return static_cast<Register>(run->second.first + *number);
    }
  }
  return kNone;
}

/// A variable's address.
Register Decoder::symbol(std::string_view name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto outgoing = scope->outgoing.find(name);
    if (outgoing != scope->outgoing.end()) {
      return given(Given::kOutgoing, to_.outgoing[outgoing->second].offset);
    }
  }
  const auto of_file = find_.shared(name);
  if (!of_file.empty() && variables_.count(name) == 0) declare_shared(of_file);
  const auto found = variables_.find(name);
  if (found == variables_.end()) return kNone;
  const auto& [area, index] = found->second;
  if (area == Area::kParameter) return given(Given::kParameter, index);
  return constant(to_.shared[index].offset);
}

/// The register that holds an operand.
Register Decoder::reg(std::string_view operand) {
  if (operand == "_") return new_register(0);  // a result that nobody wants
  if (const auto value = literal(operand)) return constant(*value);
  const auto special = kGiven.find(operand);
  if (special != kGiven.end()) return given(special->second, 0);
  Register found = declared(operand);
  if (found == kNone) found = symbol(operand);
  if (found == kNone) unknown("operand", operand);
  return found;
}

/// As "[%rd1+8]" or "[name+-4]".
void Decoder::address(std::string_view operand, Operation& made) {
  if (operand.size() < 3 || operand.front() != '[') unknown("address", operand);
  std::string_view base = trimmed(operand.substr(1, operand.size() - 2));
  const size_t plus = base.find('+');
  if (plus != base.npos) {
    const auto offset = literal(trimmed(base.substr(plus + 1)));
    if (!offset) unknown("address", operand);
    made.offset = static_cast<int64_t>(*offset);
    base = trimmed(base.substr(0, plus));
  }
  made.from[0] = reg(base);
}

/// As "{%r1, %r2}", or one register.
void Decoder::several(std::string_view operand, Register* numbers, size_t* count) {
  const bool braces = operand.front() == '{';
  const Words all = braces ? split(operand.substr(1, operand.size() - 2), ',') : Words{operand};
  if (all.empty() || all.size() > 4) unknown("operand", operand);
  for (size_t i = 0; i < all.size(); ++i) numbers[i] = reg(all[i]);
  *count = all.size();
}

}  // namespace fastcomm::ptx
