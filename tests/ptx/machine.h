// A thread of a kernel, as the interpreter of PTX sees it, and the memory that it uses.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "program.h"

namespace fastcomm::ptx {

/// A call of a function by a thread.
struct Frame {
  const Function* function = nullptr;
  std::vector<uint64_t> registers;
  std::vector<char*> parameters;  // where each lies
  std::vector<char> outgoing;     // parameters of calls
  uint32_t next = 0;              // operation
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
  Block(const Launch& in, uint32_t number)
      : launch(&in), index(number), shared(in.kernel->shared.bytes + 64, '\x5a') {}

  const Launch* launch;
  uint32_t index;
  std::vector<char> shared;
};

enum class Pause : uint8_t { kNone, kSpent, kLooked, kBarrier, kEnded };

struct Thread {
  Thread(Block& block, uint32_t index);
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread();

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

/// Runs a grid to its end: coroutines.cpp or threads.cpp.
void run_grid(const Launch& launch);

// Accesses to memory, as Operation says.
void execute_load(Thread&, const Operation&);
void execute_store(Thread&, const Operation&);
void execute_exchange(Thread&, const Operation&);

void execute_branch(Thread&, const Operation&);
void execute_call(Thread&, const Operation&);
void execute_return(Thread&, const Operation&);
void execute_barrier(Thread&, const Operation&);
void execute_yield(Thread&, const Operation&);
void execute_clock(Thread&, const Operation&);
void execute_unpack(Thread&, const Operation&);
void execute_pack(Thread&, const Operation&);

/// What devices use as bytes [begin, end); the host finds it `shift` further on.
struct Range {
  bool holds(uint64_t address, uint64_t bytes) const {
    return address >= begin && address < end && bytes <= end - address;
  }

  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t shift = 0;
};

// The allocations of this process that kernels may use (memory.cpp).
void add_range(const void* begin, uint64_t bytes, const void* on_host);
void remove_range(const void* begin);
/// The range that holds all of these bytes, nullptr if there is none.
const Range* find_range(uint64_t address, uint64_t bytes);

// Where ThreadSanitizer looks on, these are compiled with it (access.cpp); all else of the
// interpreter is not, as registers are a thread's own.
uint64_t load(const char* from, unsigned bytes, Order order);
void store(char* to, uint64_t value, unsigned bytes, Order order);
uint64_t exchange(char* at, uint64_t value, unsigned bytes, Order order);

}  // namespace fastcomm::ptx
