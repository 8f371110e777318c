// The order between processes: uses of memory that several of them have mapped, checked as they
// happen, against the order that flags, streams, events and the host give.
//
//   store_flag   the flag has the clock of the thread that stores; relaxed: none
//   load_flag    the thread knows what the flag's clock does; relaxed: no more than before
//   __syncthreads   the threads of a block know what each of them does, and what they did is done
//   streams, events, the host   as shim/order.h has them, at the time of their execution
//   handles      who opens one knows what the exporter's host had waited for
// A flag's value and its clock are one: both change, and are read, under the lock of the ledger. So
// reports follow from the values that loads gave, not from which side was faster.
//
// A use is the block's, named by all of its threads (FC_TOUCHES in core/touches.h): it is not over
// before the block's next barrier. Storing or loading a flag counts as reading it, so that setting
// it to zero has to be ordered. Memory of one process alone stays the business of shim/order.h;
// here it costs the load of one pointer, and takes no lock, which ThreadSanitizer would take for an
// order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shim/ledger.h"
#include "shim/order.h"

namespace fastcomm::shim {

/// What runs, and what it is ordered after: a thread of a kernel, or a piece of a stream's work.
struct Executing {
  WideClock clock;
  Worker worker = 0;  // the block; of other work, the stream
  Worker thread = 0;  // the same where there are no threads
  uint64_t launch = 0;
  uint64_t phase = 0;  // barriers since the launch
  const std::string* what = nullptr;

  uint64_t number() const { return work_number(launch, phase + 1); }

  /// The block's threads have met: all that each of them did is done, and known to this one.
  void behind_barrier(const WideClock& of_all) {
    clock.join(of_all);
    ++phase;
    clock.learn(worker, work_number(launch, phase));
  }
};
inline thread_local Executing* executing = nullptr;

/// What the host threads of this process have waited for. Only host threads call.
class WideHost {
 public:
  static WideHost& get() {
    static WideHost& host = *new WideHost;
    return host;
  }
  WideClock now() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return clock_;
  }
  void saw(const WideClock& clock) {
    const std::lock_guard<std::mutex> lock(mutex_);
    clock_.join(clock);
  }
  void saw(const FlatClock& clock) {
    const std::lock_guard<std::mutex> lock(mutex_);
    clock_.join(clock);
  }

 private:
  std::mutex mutex_;
  WideClock clock_;
};

/// Whoever gets the memory from now on is ordered after what this process's host has waited for.
inline void tell_exporter(Ledger& ledger) {
  const LedgerLock locked(ledger);
  WideClock all = WideHost::get().now();
  all.join(ledger.card.exported);
  if (!all.store(ledger.card.exported)) {
    Order::get().add_hazards({"there are too many workers in the clock of an exporter"});
  }
}

/// An allocation that processes share, as this one has it mapped.
class SharedMemory {
 public:
  /// `begin`: where the host finds it.
  SharedMemory(Ledger& ledger, const char* begin)
      : ledger_(ledger), begin_(begin), bytes_(ledger.card.bytes) {}

  const char* begin() const { return begin_; }
  bool contains(const void* address) const {
    const auto* const at = static_cast<const char*>(address);
    return at >= begin_ && at < begin_ + bytes_;
  }

  /// By the block, or by a single thread, whose use is over when this returns.
  void touch(const void* address, uint64_t bytes, bool write, bool alone, Executing& who) {
    const uint64_t begin = offset(address);
    const uint64_t end = std::min(begin + bytes, bytes_);
    const LedgerLock lock(ledger_);
    note(begin, end, write, alone ? who.thread : who.worker, who.number(), who);
    if (alone) who.clock.learn(who.thread, who.number());
    for (SharedFlag& flag : ledger_.flags) {
      if (flag.end == 0) break;
      if (write && flag.end > begin && flag.end <= end) flag.clock.count = 0;
    }
  }

  void store_flag(uint32_t* flag, uint32_t value, std::memory_order order) {
    const LedgerLock lock(ledger_);
    SharedFlag* const there = use_flag(flag);
    if (there != nullptr) {
      there->clock.count = 0;  // the owner's alone: a flag has one writer
      const WideClock clock = executing != nullptr ? executing->clock : WideHost::get().now();
      if (order != std::memory_order_relaxed && !clock.store(there->clock)) {
        overflow("workers in a flag's clock");
      }
    }
    reinterpret_cast<std::atomic<uint32_t>*>(flag)->store(value, order);
  }
  uint32_t load_flag(const uint32_t* flag, std::memory_order order) {
    const LedgerLock lock(ledger_);
    const SharedFlag* const there = use_flag(flag);
    if (there != nullptr && order != std::memory_order_relaxed) {
      executing != nullptr ? executing->clock.join(there->clock)
                           : WideHost::get().saw(there->clock);
    }
    return reinterpret_cast<const std::atomic<uint32_t>*>(flag)->load(order);
  }

  /// Reports what this process has under way there that the host has not waited for.
  void must_be_idle(const char* does) {
    const LedgerLock lock(ledger_);
    const WideClock host = WideHost::get().now();
    ledger_.shadow.unseen(process_number(), host,
                          [&](const SharedUse& earlier, bool wrote, uint64_t at, uint64_t bytes) {
                            report(concat("the host ", does), at, bytes, earlier, wrote);
                          });
  }

 private:
  uint64_t offset(const void* address) const {
    return static_cast<uint64_t>(static_cast<const char*>(address) - begin_);
  }

  void note(uint64_t begin, uint64_t end, bool write, Worker worker, uint64_t number,
            const Executing& who) {
    const char* const does = write ? " writes" : " reads";
    const std::string words = concat(*who.what, " in process ", getpid());
    const SharedUse use{worker, number, ledger_.name_of(words)};
    const bool noted = ledger_.shadow.touch(
        begin, end, write, use, who.clock,
        [&](const SharedUse& earlier, bool wrote, uint64_t at, uint64_t bytes) {
          report(named(use) + does, std::max(at, begin),
                 std::min(at + bytes, end) - std::max(at, begin), earlier, wrote);
        });
    if (!noted) overflow("pieces of memory, or readers of one");
    if (ledger_.card.freed && !std::exchange(told_freed_, true)) {
      Order::get().add_hazards(
          {concat(named(use), does, " ", end - begin, " bytes at ", begin,
                  " of memory that process ", ledger_.card.pid, " has freed")});
    }
  }

  /// The flag's entry, and this use of it; nullptr: there is no room.
  SharedFlag* use_flag(const uint32_t* flag) {
    const uint64_t begin = offset(flag);
    const uint64_t end = begin + sizeof(*flag);
    if (executing != nullptr) {
      note(begin, end, false, executing->thread, executing->number(), *executing);
      executing->clock.learn(executing->thread, executing->number());
    }
    for (SharedFlag& each : ledger_.flags) {
      if (each.end == 0) each.end = end;
      if (each.end == end) return &each;
    }
    overflow("flags");
    return nullptr;
  }

  std::string named(const SharedUse& use) const {
    const Worker block = (use.worker & kBlockMask) >> 4;
    const std::string name = ledger_.names[use.name];
    return block == 0 ? name : concat(name, ", block ", block - 1);
  }
  void report(const std::string& who_does, uint64_t at, uint64_t bytes, const SharedUse& earlier,
              bool wrote) const {
    Order::get().add_hazards(
        {concat(who_does, " ", bytes, " bytes at ", at, " of memory of process ", ledger_.card.pid,
                ", which ", named(earlier), wrote ? " writes" : " reads",
                ", and nothing orders one after the other")});
  }
  /// Nothing goes unchecked silently.
  void overflow(const char* what) {
    if (std::exchange(told_overflow_, true)) return;
    Order::get().add_hazards({concat("there are too many ", what, " in memory of process ",
                                     ledger_.card.pid, " for its order to be looked at")});
  }

  Ledger& ledger_;
  const char* const begin_;
  const uint64_t bytes_;
  bool told_freed_ = false;  // under the ledger's lock
  bool told_overflow_ = false;
};

/// The parts of this process's memory that others may have too. find() takes no lock: lists are
/// never changed, and never freed.
class SharedMemories {
 public:
  using List = std::vector<SharedMemory*>;

  static void add(SharedMemory* memory) {
    change([&](List& list) { list.push_back(memory); });
  }
  static void remove(SharedMemory* memory) {
    change([&](List& list) { list.erase(std::find(list.begin(), list.end(), memory)); });
  }
  /// nullptr: only this process has it.
  static SharedMemory* find(const void* address) {
    const List* const list = current.load(std::memory_order_acquire);
    if (list == nullptr) return nullptr;
    for (SharedMemory* const memory : *list) {
      if (memory->contains(address)) return memory;
    }
    return nullptr;
  }
  /// Whether there has ever been any.
  static bool any() { return current.load(std::memory_order_acquire) != nullptr; }

 private:
  template <class Change>
  static void change(const Change& change) {
    static std::mutex& mutex = *new std::mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    const List* const before = current.load(std::memory_order_relaxed);
    List* const next = before == nullptr ? new List : new List(*before);
    change(*next);
    current.store(next, std::memory_order_release);
  }

  inline static std::atomic<const List*> current{nullptr};
};

/// A use by the running block, named by all of its threads, or by a thread that runs alone.
inline void touches(const void* address, uint64_t bytes, bool write, bool alone = false) {
  if (executing == nullptr || bytes == 0) return;
  SharedMemory* const memory = SharedMemories::find(address);
  if (memory != nullptr) memory->touch(address, bytes, write, alone, *executing);
}

}  // namespace fastcomm::shim
