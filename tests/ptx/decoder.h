// Statements of a function of PTX as operations (program.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program.h"

namespace fastcomm::ptx {

/// Bytes of a type such as "u32"; 0 if there is no such type.
uint32_t bytes_of(std::string_view type);

/// Everything is an error that it does not know: directives, instructions, modifiers, operands.
class Decoder {
 public:
  /// What a function uses that its file declares.
  struct Find {
    std::function<const Function*(const std::string&)> function;
    /// The declaration of a variable in shared memory; empty if there is none.
    std::function<std::string_view(std::string_view)> shared;
  };

  Decoder(Function& function, Find find) : to_(function), find_(std::move(find)) {}
  void decode(std::string_view parameters, std::string_view body);

 private:
  using Words = std::vector<std::string_view>;
  /// Names between braces hide those outside.
  struct Scope {
    std::map<std::string, Register, std::less<>> registers;
    std::map<std::string, std::pair<uint32_t, uint32_t>, std::less<>> runs;  // "%r<84>"
    std::map<std::string, uint32_t, std::less<>> outgoing;                   // index in Function
  };
  enum class Area { kParameter, kShared };

  void share_registers();
  void statement(std::string_view text);
  void directive(std::string_view text);
  void declare_registers(std::string_view text);
  void declare_shared(std::string_view text);
  Variable declare(std::string_view text, uint32_t* top, std::string* name) const;
  void instruction(std::string_view text);
  void access(const Words& name, const Words& operands, Operation& made);
  void atomic_access(const Words& name, const Words& operands, Operation& made);
  void barrier(const std::string& name, const Words& operands, Operation& made);
  void call(std::string_view operands, Operation& made);
  void move(const std::string& name, const Words& operands, Operation& made);
  /// Takes the modifiers that say how an access orders others, and its scope.
  void take_order(Words& modifiers, Operation& made) const;

  Register reg(std::string_view operand);
  Register declared(std::string_view name) const;
  Register constant(uint64_t value);
  Register given(Given what, uint32_t index);
  Register symbol(std::string_view name);
  Register new_register(uint64_t value);
  void address(std::string_view operand, Operation& made);
  void several(std::string_view operand, Register* numbers, size_t* count);
  [[noreturn]] void unknown(const char* what, std::string_view which) const;

  Function& to_;
  const Find find_;
  std::string_view now_;  // the statement
  std::vector<Scope> scopes_;
  std::map<std::string, std::pair<Area, uint32_t>, std::less<>> variables_;
  std::map<uint64_t, Register> constants_;
  std::map<std::pair<Given, uint32_t>, Register> givens_;
  std::map<std::string, uint32_t, std::less<>> labels_;
  std::vector<std::pair<uint32_t, std::string>> branches_;  // operation, label
};

}  // namespace fastcomm::ptx
