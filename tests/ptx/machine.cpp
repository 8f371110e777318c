// Threads of kernels: what is executed next, memory, calls and barriers.
#include "machine.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fastcomm::ptx {
namespace {

/// Ends the program, as a device ends the kernel.
[[noreturn]] void stop(const Thread& thread, const std::string& what) {
  const Function& function = *thread.frame->function;
  const std::string text(function.text[thread.now - function.code.data()]);
  std::fprintf(stderr, "PTX: %s: '%s', thread %u of block %u, kernel %s, in %s\n", what.c_str(),
               text.c_str(), thread.index, thread.block->index,
               thread.block->launch->kernel->name.c_str(), function.name.c_str());
  std::fflush(stderr);
  std::abort();
}

std::string words_for(uint64_t address, uint32_t bytes, bool write) {
  char text[128];
  std::snprintf(text, sizeof(text), "%s of %u bytes at 0x%llx", write ? "write" : "read", bytes,
                static_cast<unsigned long long>(address));
  return text;
}

bool holds(uint64_t begin, uint64_t length, uint64_t address, uint64_t bytes) {
  return address >= begin && address - begin < length && bytes <= length - (address - begin);
}

/// Parameters of the kernel or the function, which are only read, and those of its calls.
bool is_parameter(const Frame& frame, uint64_t address, uint32_t bytes, bool write) {
  const Function& function = *frame.function;
  for (size_t i = 0; i < frame.parameters.size() && !write; ++i) {
    const auto begin = reinterpret_cast<uint64_t>(frame.parameters[i]);
    if (holds(begin, function.parameters[i].bytes, address, bytes)) return true;
  }
  for (const Variable& each : function.outgoing) {
    const auto begin = reinterpret_cast<uint64_t>(frame.outgoing.get()) + each.offset;
    if (holds(begin, each.bytes, address, bytes)) return true;
  }
  return false;
}

uint64_t mask_of(unsigned bytes) { return bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1; }

uint64_t extended(uint64_t value, const Operation& operation) {
  if (!operation.is_signed) return value;
  const unsigned unused = 64 - 8 * operation.bytes;
  return static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
}

/// The order that other devices see.
Order order_of(const Operation& operation) {
  return operation.order == Order::kWeak || operation.system ? operation.order : Order::kRelaxed;
}

template <Change kind>
void execute_atomic(Thread& thread, const Operation& operation) {
  char* const at = reach(thread, operation, operation.bytes, true);
  const uint64_t first = thread.registers[operation.from[1]];
  const bool compares = kind == Change::kCompareExchange;
  const uint64_t value = compares ? thread.registers[operation.from[2]] : first;
  thread.registers[operation.to[0]] =
      change(at, kind, value, first, operation.bytes, order_of(operation));
  thread.pause = Pause::kLooked;
}

std::vector<std::vector<uint64_t>>& spare_registers() {
  static thread_local std::vector<std::vector<uint64_t>> spare;
  return spare;
}

}  // namespace

Registers::~Registers() { spare_registers().push_back(std::move(all_)); }

/// Not memcpy: ThreadSanitizer looks at that wherever it is called.
void Registers::take(const std::vector<uint64_t>& values) {
  auto& spare = spare_registers();
  if (!spare.empty()) {
    all_ = std::move(spare.back());
    spare.pop_back();
  }
  if (all_.size() < values.size()) all_.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const_cast<volatile uint64_t&>(all_[i]) = values[i];
  }
}

Thread::Thread(Block& in, uint32_t number) : block(&in), index(number) {
  std::vector<char*> parameters;
  for (const Variable& each : in.launch->kernel->parameters) {
    parameters.push_back(in.launch->parameters.get() + each.offset);
  }
  enter(*in.launch->kernel, std::move(parameters));
}

void Thread::enter(const Function& function, std::vector<char*> parameters) {
  Frame& made = frames.emplace_back();
  frame = &made;
  made.function = &function;
  made.registers.take(function.registers);
  made.parameters = std::move(parameters);
  if (!function.outgoing.empty()) made.outgoing.reset(new char[function.outgoing_bytes + 16]);
  registers = made.registers.data();
  const auto value_of = [&](const GivenRegister& given) -> uint64_t {
    switch (given.what) {
      case Given::kThread:
        return index;
      case Given::kThreads:
        return block->launch->threads;
      case Given::kBlock:
        return block->index;
      case Given::kBlocks:
        return block->launch->blocks;
      case Given::kLane:
        return index % 32;
      case Given::kParameter:
        return reinterpret_cast<uint64_t>(made.parameters[given.index]);
      default:
        return reinterpret_cast<uint64_t>(made.outgoing.get()) + given.index;
    }
  };
  for (const GivenRegister& given : function.given) registers[given.number] = value_of(given);
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

char* reach(Thread& thread, const Operation& operation, uint32_t bytes, bool write) {
  const uint64_t base = thread.registers[operation.from[0]];
  uint64_t address = base + static_cast<uint64_t>(operation.offset);
  const auto refuse = [&](const char* why) {
    stop(thread, words_for(address, bytes, write) + ", " + why);
  };
  if (operation.space == Space::kShared) {
    address = static_cast<uint32_t>(address);
    for (const Variable& each : thread.frame->function->shared) {
      if (!holds(each.offset, each.bytes, address, bytes)) continue;
      if (address % bytes != 0) refuse("which is not aligned");
      return thread.block->shared.get() + address;
    }
    refuse("outside of the variables of shared memory");
  }
  if (address % bytes != 0) refuse("which is not aligned");
  if (operation.space != Space::kParameter) {
    const Range* const range = find_range(address, bytes);
    if (range != nullptr) return reinterpret_cast<char*>(address + range->shift);
    if (operation.space == Space::kGlobal) refuse("outside of any allocation");
  }
  if (!is_parameter(*thread.frame, address, bytes, write)) {
    refuse("outside of any allocation and of the parameters");
  }
  return reinterpret_cast<char*>(address);
}

void execute_load(Thread& thread, const Operation& operation) {
  const char* from = reach(thread, operation, operation.bytes * operation.count, false);
  const Order order = order_of(operation);
  if (order != Order::kWeak) thread.pause = Pause::kLooked;
  for (int i = 0; i < operation.count; ++i, from += operation.bytes) {
    thread.registers[operation.to[i]] = extended(load(from, operation.bytes, order), operation);
  }
}

void execute_store(Thread& thread, const Operation& operation) {
  char* to = reach(thread, operation, operation.bytes * operation.count, true);
  for (int i = 0; i < operation.count; ++i, to += operation.bytes) {
    store(to, thread.registers[operation.from[1 + i]], operation.bytes, order_of(operation));
  }
}

Execute atomic(const std::string& operation) {
  if (operation == "exch") return execute_atomic<Change::kExchange>;
  if (operation == "cas") return execute_atomic<Change::kCompareExchange>;
  if (operation == "add") return execute_atomic<Change::kAdd>;
  return nullptr;
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
  thread.frames.pop_back();
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
