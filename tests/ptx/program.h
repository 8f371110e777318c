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

/// How an access orders others, as in PTX's memory model.
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
  bool system = true;  // scope; a narrower one does not reach other devices
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

/// A parameter, or a variable of shared memory: where in its area, and how long.
struct Variable {
  uint32_t offset;
  uint32_t bytes;
};

/// A register whose value depends on the thread.
enum class Given : uint8_t {
  kThread,
  kThreads,
  kBlock,
  kBlocks,
  kLane,
  kParameter,  // address of parameter `index`
  kOutgoing    // address at `index` of the area for parameters of calls
};
struct GivenRegister {
  Register number;
  Given what;
  uint32_t index;
};

struct Function {
  std::string name;
  uint32_t most_threads = 1024;  // of a block
  std::vector<Variable> parameters;
  uint32_t parameter_bytes = 0;
  std::vector<Variable> shared;
  uint32_t shared_bytes = 0;
  std::vector<Variable> outgoing;
  uint32_t outgoing_bytes = 0;
  std::vector<uint64_t> registers;  // their first values
  std::vector<GivenRegister> given;
  std::vector<Operation> code;
  std::vector<std::string_view> text;  // of each operation
  std::vector<Call> calls;
};

/// A statement, a scope or an operand that is not understood.
struct Unknown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A file of PTX.
class Program {
 public:
  explicit Program(std::string text);
  std::vector<std::string> kernels() const;
  bool has(const std::string& name) const { return sources_.count(name) != 0; }
  /// Decodes it and what it calls, once. Thread-safe.
  const Function& function(const std::string& name);

 private:
  struct Source {
    bool is_kernel;
    std::string_view parameters;
    std::string_view directives;  // such as ".maxntid 256, 1, 1"
    std::string_view body;
  };
  /// Notes the variables in shared memory that are declared between functions.
  void find_shared(std::string_view between);

  const std::string text_;  // without comments
  std::map<std::string, Source> sources_;
  std::map<std::string, std::string_view, std::less<>> shared_;  // declarations
  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::recursive_mutex mutex_;
};

/// What executes an instruction that neither branches nor uses memory; nullptr: unknown. `name`
/// has all its modifiers.
Execute arithmetic(const std::string& name);

/// Executes an access to memory of Operation::space and so on.
void execute_load(Thread&, const Operation&);
void execute_store(Thread&, const Operation&);
Execute atomic(const std::string& operation);

void execute_branch(Thread&, const Operation&);
void execute_call(Thread&, const Operation&);
void execute_return(Thread&, const Operation&);
void execute_barrier(Thread&, const Operation&);
void execute_yield(Thread&, const Operation&);
void execute_clock(Thread&, const Operation&);
void execute_unpack(Thread&, const Operation&);
void execute_pack(Thread&, const Operation&);

}  // namespace fastcomm::ptx
