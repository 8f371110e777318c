// Threads of kernels: what is executed next, memory, calls and barriers.
#include "machine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace fastcomm::ptx {
namespace {

/// Ends the program, as a device ends the kernel.
[[noreturn]] void refuse(const Thread& thread, uint64_t address, uint32_t bytes, bool write,
                         const char* why) {
  const Function& function = *thread.frame->function;
  const std::string text(function.text[thread.now - function.code.data()]);
  std::fprintf(stderr,
               "PTX: %s of %u bytes at 0x%llx, %s: '%s', thread %u of block %u, kernel %s, in %s\n",
               write ? "write" : "read", bytes, static_cast<unsigned long long>(address), why,
               text.c_str(), thread.index, thread.block->index,
               thread.block->launch->kernel->name.c_str(), function.name.c_str());
  std::fflush(stderr);
  std::abort();
}

/// Parameters of the kernel or the function, which are only read, and those of its calls.
bool is_parameter(const Frame& frame, uint64_t address, uint32_t bytes, bool write) {
  const auto holds = [&](const char* at, uint32_t length) {
    const auto begin = reinterpret_cast<uint64_t>(at);
    return Range{begin, begin + length}.holds(address, bytes);
  };
  const Function& function = *frame.function;
  for (size_t i = 0; i < frame.parameters.size() && !write; ++i) {
    if (holds(frame.parameters[i], function.parameters.variables[i].bytes)) return true;
  }
  for (const auto& each : function.outgoing.variables) {
    if (holds(frame.outgoing.data() + each.offset, each.bytes)) return true;
  }
  return false;
}

uint64_t mask_of(unsigned bytes) { return bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1; }

uint64_t extended(uint64_t value, const Operation& operation) {
  if (!operation.is_signed) return value;
  const unsigned unused = 64 - 8 * operation.bytes;
  return static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
}

/// The bytes that an operation uses, as the host reaches them. Ends the program if they are not
/// aligned, or not all inside of one variable or allocation.
char* reach(Thread& thread, const Operation& operation, uint32_t bytes, bool write) {
  const uint64_t base = thread.registers[operation.from[0]];
  uint64_t address = base + static_cast<uint64_t>(operation.offset);
  const auto fail = [&](const char* why) { refuse(thread, address, bytes, write, why); };
  if (operation.space == Space::kShared) {
    address = static_cast<uint32_t>(address);
    for (const auto& each : thread.frame->function->shared.variables) {
      if (!Range{each.offset, each.offset + each.bytes}.holds(address, bytes)) continue;
      if (address % bytes != 0) fail("which is not aligned");
      return thread.block->shared.data() + address;
    }
    fail("outside of the variables of shared memory");
  }
  if (address % bytes != 0) fail("which is not aligned");
  if (operation.space != Space::kParameter) {
    const Range* const range = find_range(address, bytes);
    if (range != nullptr) return reinterpret_cast<char*>(address + range->shift);
    if (operation.space == Space::kGlobal) fail("outside of any allocation");
  }
  if (!is_parameter(*thread.frame, address, bytes, write)) {
    fail("outside of any allocation and of the parameters");
  }
  return reinterpret_cast<char*>(address);
}

/// Those that this thread of the host has used before.
std::list<Frame>& spare_frames() {
  static thread_local std::list<Frame> spare;
  return spare;
}

}  // namespace

Thread::Thread(Block& in, uint32_t number) : block(&in), index(number) {
  std::vector<char*> parameters;
  for (const auto& each : in.launch->kernel->parameters.variables) {
    parameters.push_back(in.launch->parameters.get() + each.offset);
  }
  enter(*in.launch->kernel, std::move(parameters));
}

Thread::~Thread() { spare_frames().splice(spare_frames().begin(), frames); }

void Thread::enter(const Function& function, std::vector<char*> parameters) {
  auto& spare = spare_frames();
  if (spare.empty()) spare.emplace_back();
  frames.splice(frames.end(), spare, spare.begin());
  frame = &frames.back();
  frame->function = &function;
  frame->parameters = std::move(parameters);
  frame->next = 0;
  frame->outgoing.resize(std::max<size_t>(frame->outgoing.size(), function.outgoing.bytes + 16));
  const size_t count = function.registers.size();
  if (frame->registers.size() < count) frame->registers.resize(count);
  registers = frame->registers.data();
  // Not memcpy: ThreadSanitizer looks at that wherever it is called.
  for (size_t i = 0; i < count; ++i) {
    const_cast<volatile uint64_t&>(registers[i]) = function.registers[i];
  }
  for (const auto& [number, value, which] : function.given) {
    registers[number] = value(*this, which);
  }
}

Pause Thread::run(uint64_t budget) {
  pause = Pause::kNone;
  while (pause == Pause::kNone) {
    if (budget-- == 0) return Pause::kSpent;
    now = &frame->function->code[frame->next++];
    if (now->guard != kNone && (registers[now->guard] != 0) == now->unless) continue;
    now->execute(*this, *now);
  }
  return pause;
}

void execute_load(Thread& thread, const Operation& operation) {
  const char* from = reach(thread, operation, operation.bytes * operation.count, false);
  if (operation.order != Order::kWeak) thread.pause = Pause::kLooked;
  for (int i = 0; i < operation.count; ++i, from += operation.bytes) {
    const uint64_t value = load(from, operation.bytes, operation.order);
    thread.registers[operation.to[i]] = extended(value, operation);
  }
}

void execute_store(Thread& thread, const Operation& operation) {
  char* to = reach(thread, operation, operation.bytes * operation.count, true);
  for (int i = 0; i < operation.count; ++i, to += operation.bytes) {
    store(to, thread.registers[operation.from[1 + i]], operation.bytes, operation.order);
  }
}

void execute_exchange(Thread& thread, const Operation& operation) {
  char* const at = reach(thread, operation, operation.bytes, true);
  const uint64_t value = thread.registers[operation.from[1]];
  thread.registers[operation.to[0]] = exchange(at, value, operation.bytes, operation.order);
  thread.pause = Pause::kLooked;
}

void execute_branch(Thread& thread, const Operation& operation) {
  thread.frame->next = operation.target;
}

void execute_call(Thread& thread, const Operation& operation) {
  const Call& call = thread.frame->function->calls[operation.target];
  std::vector<char*> parameters;
  for (const Register each : call.arguments) {
    parameters.push_back(reinterpret_cast<char*>(thread.registers[each]));
  }
  thread.enter(*call.function, std::move(parameters));
}

void execute_return(Thread& thread, const Operation&) {
  if (thread.frames.size() == 1) {
    thread.pause = Pause::kEnded;
    return;
  }
  auto& spare = spare_frames();
  spare.splice(spare.begin(), thread.frames, std::prev(thread.frames.end()));
  thread.frame = &thread.frames.back();
  thread.registers = thread.frame->registers.data();
}

void execute_barrier(Thread& thread, const Operation& operation) {
  thread.vote = thread.registers[operation.from[0]] != 0;
  thread.answer = operation.to[0];
  thread.pause = Pause::kBarrier;
}

void execute_yield(Thread& thread, const Operation&) { thread.pause = Pause::kLooked; }

void execute_clock(Thread& thread, const Operation& operation) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  thread.registers[operation.to[0]] =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void execute_pack(Thread& thread, const Operation& operation) {
  uint64_t value = 0;
  for (int i = 0; i < operation.count; ++i) {
    const uint64_t part = thread.registers[operation.from[i]] & mask_of(operation.bytes);
    value |= part << (8 * operation.bytes * i);
  }
  thread.registers[operation.to[0]] = value;
}

void execute_unpack(Thread& thread, const Operation& operation) {
  const uint64_t value = thread.registers[operation.from[0]];
  for (int i = 0; i < operation.count; ++i) {
    thread.registers[operation.to[i]] =
        value >> (8 * operation.bytes * i) & mask_of(operation.bytes);
  }
}

}  // namespace fastcomm::ptx
