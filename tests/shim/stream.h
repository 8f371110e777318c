// Streams and events of the execution shim: what is enqueued runs later, in order, on the stream's
// own thread, or on that of a hardware queue that several streams share.
//
// ThreadSanitizer must see the order that CUDA gives and no other. A mutex would give more: whoever
// locks it comes after whoever unlocked it before, so a worker that takes its next piece of work
// would be ordered before the host's next call, and with it before everything that is enqueued
// anywhere afterwards; a forgotten cudaStreamWaitEvent could never be reported. So every hand-over
// here has one direction, by an atomic word that one side stores with release and the other loads
// with acquire; the futex used to sleep on it orders nothing.
//
//   host call   -> the work that it enqueued
//   work        -> later work of the same stream           (one thread)
//   an event's record, in its stream  -> whoever waited for it, in a stream or on the host
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "shim/interleave.h"
#include "shim/order.h"
#include "shim/wide_clock.h"

namespace fastcomm::shim {

/// Raised once, by one thread; everything before that happens before the end of a wait.
class Signal {
 public:
  void raise() {
    when_ = std::chrono::steady_clock::now();
    word_.store(1, std::memory_order_release);
    syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  bool raised() const { return word_.load(std::memory_order_acquire) != 0; }
  void wait() const {
    while (!raised()) syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  }
  /// When it was raised; of one that has been seen raised.
  std::chrono::steady_clock::time_point when() const { return when_; }

  WideClock clock;  // known to whoever has seen it raised; written before

 private:
  std::chrono::steady_clock::time_point when_;
  std::atomic<uint32_t> word_{0};
};

/// What a stream has done so far of the work that others may see (shim/shared_memory.h). Its
/// queue's thread alone has it; never freed, as what it was given may outlive a stream.
struct Progress {
  WideClock clock;
  uint64_t launch = 0;
};

/// A hardware queue: does what it is given, one thing after the other, on a thread of its own.
/// Streams that share one wait for each other, as on a device with fewer queues than streams
/// ($CUDA_DEVICE_MAX_CONNECTIONS): a wait for an event holds up everything that was issued later,
/// whatever its stream.
class Queue {
 public:
  Queue() : last_(new Node) {
    // Detached: a destroyed stream finishes its work, as on a device, and nobody waits for it.
    std::thread(work_off, last_).detach();
  }

  void enqueue(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(callers_);  // the worker never takes it
    Node* node = last_;
    last_ = new Node;
    node->work = std::move(work);
    node->next = last_;
    node->filled.raise();
  }

  /// Lets the worker end when it has done everything; nothing may be enqueued afterwards.
  void close() { enqueue(nullptr); }

 private:
  struct Node {
    std::function<void()> work;  // empty: the end
    Node* next = nullptr;
    Signal filled;
  };

  static void work_off(Node* node) {
    for (;;) {
      node->filled.wait();
      dawdle();
      if (!node->work) break;
      node->work();
      Node* next = node->next;
      delete node;
      node = next;
    }
    delete node->next;
    delete node;
  }

  /// Streams run at different speeds, so that a missing wait also shows in the data.
  static void dawdle() {
    thread_local uint32_t state = static_cast<uint32_t>(syscall(SYS_gettid));
    state = state * 1664525u + 1013904223u;
    if (interleave_seed.load(std::memory_order_relaxed) != 0 && (state >> 30) == 0) {
      usleep((state >> 20) & 255);
    }
  }

  std::mutex callers_;
  Node* last_;
};

struct Capture;

constexpr int kMostDevices = 16;
/// For each device: streams with work that is not done.
inline std::atomic<int> busy_streams[kMostDevices];

class Stream {
 public:
  /// With a queue of its own, or with one that others use too, which outlives it.
  explicit Stream(int device, Queue* queue = nullptr)
      : actor(Order::get().new_actor()),
        device_(device),
        own_(queue == nullptr),
        queue_(own_ ? new Queue : queue),
        finished_(new std::atomic<uint64_t>{0}),
        pending_(new std::atomic<int>{0}) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Work that it was given is still done.
  ~Stream() {
    if (!own_) return;
    queue_->close();
    // Not freed, like the queue: its thread may still be at work, and a count of users would order.
  }

  int device() const { return device_; }

  /// Returns how much it was given so far.
  uint64_t enqueue(std::function<void()> work) {
    const uint64_t number = ++issued_;
    std::atomic<int>* const busy = &busy_streams[device_ % kMostDevices];
    // Relaxed, as below: nothing may seem to be ordered by it.
    if (pending_->fetch_add(1, std::memory_order_relaxed) == 0) {
      busy->fetch_add(1, std::memory_order_relaxed);
    }
    queue_->enqueue([work = std::move(work), finished = finished_, pending = pending_, busy] {
      work();
      if (pending->fetch_sub(1, std::memory_order_relaxed) == 1) {
        busy->fetch_sub(1, std::memory_order_relaxed);
      }
      finished->store(finished->load(std::memory_order_relaxed) + 1, std::memory_order_release);
    });
    return number;
  }
  /// Returns when that much is done, also where the last piece has already woken the caller: a
  /// query says so then. Acquire, as idle(): whoever waited for a stream is after what it did.
  void wait_for(uint64_t number) const {
    while (finished_->load(std::memory_order_acquire) < number) std::this_thread::yield();
  }

  /// Whether everything is done that it was given so far.
  bool idle() const { return finished_->load(std::memory_order_acquire) == issued_; }

  const Actor actor;
  Progress* const progress = new Progress;
  Clock clock;                 // of Order::get()
  Capture* capture = nullptr;  // what it is given goes there instead (shim/capture.h)
  Clock capture_clock;         // of the capture's order

 private:
  const int device_;
  const bool own_;
  Queue* const queue_;
  std::atomic<uint64_t> issued_{0};
  std::atomic<uint64_t>* const finished_;  // written by the queue's thread alone
  std::atomic<int>* const pending_;        // as long-lived, for busy_streams
};

struct Event {
  explicit Event(int device_) : device(device_) {}

  const int device;
  // The latest record. Never freed: streams that wait for it may outlive the event, and a count of
  // its users would order them.
  std::atomic<Signal*> recorded{nullptr};
  Clock clock;                 // of that record
  Capture* capture = nullptr;  // which it is part of, if any
};

}  // namespace fastcomm::shim
