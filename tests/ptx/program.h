// Functions of PTX, ready to be executed: what nvcc makes of the kernels, before ptxas.
//
// A function is decoded when it is first launched. All that a statement names is a register of the
// function: immediate operands, special registers and addresses of variables are registers with a
// value from the start. Whatever the decoder does not know is an error that names it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fastcomm::ptx {

struct Thread;
struct Function;
struct Operation;
using Execute = void (*)(Thread&, const Operation&);

/// How an access orders others, as in PTX's memory model; kRelaxed also if its scope is less than
/// the system.
enum class Order : uint8_t { kWeak, kRelaxed, kAcquire, kRelease, kAcquireRelease };
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParameter };

/// The number of a register.
using Register = uint16_t;
constexpr Register kNone = 0xffff;

/// An instruction, in one line of the cache.
struct Operation {
  Execute execute = nullptr;
  Register to[4] = {kNone, kNone, kNone, kNone};
  Register from[5] = {kNone, kNone, kNone, kNone, kNone};
  Register guard = kNone;  // a predicate
  bool unless = false;     // executed if the guard is false
  // Of accesses to memory:
  Space space = Space::kGeneric;
  Order order = Order::kWeak;
  bool is_signed = false;
  uint8_t bytes = 0;  // of an element
  uint8_t count = 1;
  int64_t offset = 0;
  uint32_t target = 0;  // of a branch: an operation; of a call: which of Function::calls
};

struct Call {
  const Function* function;
  std::vector<Register> arguments;  // with the addresses of parameters
};

/// Parameters, or the variables of shared memory: where each lies, and how long it is.
struct Area {
  struct Variable {
    uint32_t offset;
    uint32_t bytes;
  };
  std::vector<Variable> variables;
  uint32_t bytes = 0;
};

/// A register whose first value depends on the thread.
using Given = uint64_t (*)(const Thread&, uint32_t index);
struct GivenRegister {
  Register number;
  Given value;
  uint32_t index;
};

struct Function {
  std::string name;
  uint32_t most_threads = 1024;  // of a block
  Area parameters;
  Area shared;
  Area outgoing;                    // parameters of calls
  std::vector<uint64_t> registers;  // their first values
  std::vector<GivenRegister> given;
  std::vector<Operation> code;
  std::vector<std::string_view> text;  // of each operation
  std::vector<Call> calls;
};

/// What is not understood.
struct Unknown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A file of PTX.
class Program {
 public:
  explicit Program(const std::string& file);
  std::vector<std::string> kernels() const;
  bool has(const std::string& name) const { return sources_.count(name) != 0; }
  /// Decodes it and what it calls, once. Thread-safe.
  const Function& function(const std::string& name);
  /// The declaration of a variable in shared memory between functions; empty if there is none.
  std::string_view shared(std::string_view name) const;

 private:
  struct Source {
    bool is_kernel;
    std::string_view parameters;
    std::string_view directives;  // such as ".maxntid 256, 1, 1"
    std::string_view body;
  };
  void find_shared(std::string_view between);

  std::string text_;  // without comments
  std::map<std::string, Source> sources_;
  std::map<std::string, std::string_view, std::less<>> shared_;
  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::recursive_mutex mutex_;
};

/// What executes an instruction that neither branches nor uses memory; nullptr: unknown. `name`
/// has all its modifiers.
Execute arithmetic(const std::string& name);

}  // namespace fastcomm::ptx
