// A thread of a kernel, as the interpreter of PTX sees it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "memory.h"
#include "program.h"

namespace fastcomm::ptx {

/// Registers, taken from those that this thread of the host has used before.
class Registers {
 public:
  Registers() = default;
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
  ~Registers();
  void take(const std::vector<uint64_t>& values);
  uint64_t* data() { return all_.data(); }

 private:
  std::vector<uint64_t> all_;
};

/// A call of a function by a thread.
struct Frame {
  const Function* function;
  Registers registers;
  std::vector<char*> parameters;     // where each lies
  std::unique_ptr<char[]> outgoing;  // parameters of calls
  uint32_t next = 0;                 // operation
};

/// What all threads of a launch have in common.
struct Launch {
  const Function* kernel;
  uint32_t threads;  // of a block
  uint32_t blocks;
  uint64_t seed;                       // of the schedule
  std::shared_ptr<char[]> parameters;  // copied when the kernel was launched
};

struct Block {
  const Launch* launch;
  uint32_t index;
  std::unique_ptr<char[]> shared;
};

enum class Pause : uint8_t { kNone, kSpent, kLooked, kBarrier, kEnded };

struct Thread {
  Thread(Block& block, uint32_t index);

  /// Executes up to `budget` operations. kLooked: something that others may change has been read.
  /// kBarrier: whoever runs the threads sets `all` when the others have come too.
  Pause run(uint64_t budget);

  Frame* frame;         // the innermost
  uint64_t* registers;  // its own
  Block* block;
  uint32_t index;
  std::list<Frame> frames;
  Pause pause = Pause::kNone;
  const Operation* now = nullptr;
  bool vote = true;         // at a barrier
  Register answer = kNone;  // the register that gets `all`

  void enter(const Function& function, std::vector<char*> parameters);
  void pass_barrier(bool all) { registers[answer] = all; }
};

/// The bytes that an operation uses, as the host reaches them. Ends the program if they are not
/// aligned, or not all inside of one variable or allocation.
char* reach(Thread& thread, const Operation& operation, uint32_t bytes, bool write);

/// Runs a grid to its end: coroutines.cpp or threads.cpp.
void run_grid(const Launch& launch);

}  // namespace fastcomm::ptx
