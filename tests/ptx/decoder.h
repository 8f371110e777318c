// Text of PTX: words and lists, and statements of a function as operations (program.h).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program.h"

namespace fastcomm::ptx {

constexpr std::string_view kWhite = " \t\n\r";

inline std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

/// Parts between separators outside of any bracket.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c == separator && depth == 0) {
      parts.push_back(trimmed(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  const std::string_view last = trimmed(text.substr(begin));
  if (!last.empty()) parts.push_back(last);
  return parts;
}

/// The text between brackets, which are its first and its last character.
inline std::string_view inside(std::string_view text) {
  return trimmed(text.substr(1, text.size() - 2));
}

/// Takes the first word, which ends at white space.
inline std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  const std::string_view word = text.substr(0, text.find_first_of(kWhite));
  text = trimmed(text.substr(word.size()));
  return word;
}

/// Bytes of a type such as "u32"; 0 if there is no such type.
uint32_t bytes_of(std::string_view type);

/// Everything is an error that it does not know: directives, instructions, modifiers, operands.
class Decoder {
 public:
  /// `file`: what else the function uses.
  Decoder(Function& function, Program& file);
  void decode(std::string_view parameters, std::string_view body);

 private:
  using Words = std::vector<std::string_view>;
  /// What a name stands for; kNone: a register that is made when a statement needs it.
  struct Name {
    Register number;
    Given value = nullptr;
    uint32_t index = 0;
  };
  struct Run {
    uint32_t first;
    uint64_t count;
  };
  /// Names between braces hide those outside.
  struct Scope {
    std::map<std::string, Name, std::less<>> names;
    std::map<std::string, Run, std::less<>> runs;  // "%r<84>"
  };

  void share_registers();
  void statement(std::string_view text);
  void directive(std::string_view text);
  void declare_registers(std::string_view text);
  void declare_shared(std::string_view text, Scope& scope);
  std::string declare(std::string_view text, Area& area) const;

  void instruction(std::string_view text);
  void access(const Words& name, const Words& operands, Operation& made);
  void barrier(const std::string& name, const Words& operands, Operation& made);
  void call(std::string_view operands, Operation& made);
  void move(const std::string& name, const Words& operands, Operation& made);

  Register reg(std::string_view operand);
  Register constant(uint64_t value);
  Register new_register(uint64_t value);
  void address(std::string_view operand, Operation& made);
  uint8_t several(std::string_view operand, Register* numbers);
  [[noreturn]] void unknown(const char* what, std::string_view which) const;

  Function& to_;
  Program& file_;
  std::string_view now_;  // the statement
  std::vector<Scope> scopes_;
  std::map<uint64_t, Register> constants_;
  std::map<std::string, uint32_t, std::less<>> labels_;
  std::vector<std::pair<uint32_t, std::string>> branches_;  // operation, label
};

}  // namespace fastcomm::ptx
