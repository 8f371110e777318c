#include "c10d/continuations.h"

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// How long the end of the interpreter waits for continuations that run.
constexpr std::chrono::seconds kLastContinuations{2};

/// Which threads run a continuation, and whether one may start.
class Gate {
 public:
  bool enter() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    ++inside_;
    return true;
  }
  void leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    --inside_;
    left_.notify_all();
  }
  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    left_.wait_for(lock, kLastContinuations, [&] { return inside_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  int inside_ = 0;
  bool closed_ = false;
};

/// Never destroyed: threads may outlive the static objects.
Gate& gate() {
  static auto* shared = new Gate;
  return *shared;
}

thread_local Continuations* t_running = nullptr;

}  // namespace

Continuations::Place Continuations::here() {
  return t_running == nullptr ? Place{} : t_running->place_;
}

std::shared_ptr<Continuations> Continuations::of_this_thread(
    const std::shared_ptr<Continuations>& own) {
  return t_running == nullptr ? own : t_running->deeper();
}

std::shared_ptr<Continuations> Continuations::create() {
  static std::atomic<uint64_t> groups{0};
  return std::shared_ptr<Continuations>(new Continuations({++groups, 1}));
}

std::shared_ptr<Continuations> Continuations::deeper() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (deeper_ == nullptr) {
    deeper_.reset(new Continuations({place_.group, place_.depth + 1}));
    deeper_->closed_ = closed_;
  }
  return deeper_;
}

void Continuations::add(FuturePtr awaited, Step step) {
  if (forked_from_endpoint()) {  // a child of fork() has no such thread
    awaited->addCallback([step = std::move(step)](c10::ivalue::Future&) { step(); });
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!running_) {
    try {
      std::thread([self = shared_from_this()] { self->run(); }).detach();
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::kSystem,
                  concat("no thread can be started for continuations of futures: ", error.what(),
                         ". Raise ulimit -u or the container's limit on processes, or ulimit -v"));
    }
    running_ = true;
  }
  entries_.push_back({std::move(awaited), std::move(step)});
  changed_.notify_one();
}

void Continuations::close() {
  std::shared_ptr<Continuations> deeper;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    deeper = deeper_;
    changed_.notify_one();
  }
  if (deeper != nullptr) deeper->close();
}

void Continuations::run() {
  t_running = this;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !entries_.empty() || closed_; });
    if (entries_.empty()) {
      running_ = false;
      return;
    }
    // On the heap: when the interpreter is gone, what it holds of Python must not be touched.
    auto* entry = new Entry(std::move(entries_.front()));
    entries_.pop_front();
    lock.unlock();
    entry->awaited->wait();
    if (!gate().enter()) return;
    entry->step();
    delete entry;
    gate().leave();
    lock.lock();
  }
}

void stop_continuations() {
  if (!forked_from_endpoint()) gate().close();
}

}  // namespace fastcomm
