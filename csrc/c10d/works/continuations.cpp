#include "c10d/works/continuations.h"

#include <c10/util/Logging.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/thread_name.h"
#include "transport/fork.h"

namespace fastcomm {
namespace {

/// Time that the end of the interpreter gives to running continuations.
constexpr std::chrono::seconds kLastContinuations{2};

/// Guards the start of continuations, and knows the threads that run one.
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
  bool closed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return closed_;
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

/// Never destroyed: threads may outlive the static objects. A child of fork() has a new one, since
/// a thread of its parent may have held the lock.
std::atomic<Gate*> g_gate{new Gate};
[[maybe_unused]] const int g_new_in_children =
    pthread_atfork(nullptr, nullptr, [] { g_gate = new Gate; });

Gate& gate() { return *g_gate; }

/// Like the future's own wait(), without its synchronisation of this thread's streams.
void wait_for(c10::ivalue::Future& future) {
  const auto complete = std::make_shared<std::promise<void>>();
  future.addCallback([complete](c10::ivalue::Future&) { complete->set_value(); },
                     /*uses_future=*/false);
  complete->get_future().wait();
}

void run_logged(const Continuations::Step& step) {
  try {
    step();
  } catch (const std::exception& error) {
    LOG(ERROR) << "a continuation of a future failed: " << error.what();
  }
}

thread_local Continuations* t_running = nullptr;
thread_local Continuations::Position t_position;

}  // namespace

Standing::Standing(Continuations::Position position)
    : before_(std::exchange(t_position, std::move(position))) {}
Standing::~Standing() { t_position = std::move(before_); }

Continuations::Position Continuations::here() {
  // A child of fork() may have been made in a continuation.
  const bool forked = t_running == nullptr ? forked_from_endpoint() : t_running->forked();
  return t_position.depth == 0 || forked ? Position{} : t_position;
}

bool Continuations::is_inside() { return t_position.depth != 0; }

Continuations::Ptr Continuations::of_this_thread(const Ptr& own) {
  return t_running == nullptr || t_running->forked() ? own : t_running->deeper();
}

Continuations::Position Continuations::next(const Ptr& own) {
  const Position position = here();
  return position.depth == 0 ? Position{own, 1} : Position{position.group, position.depth + 1};
}

Continuations::Continuations() : made_in_(getpid()) {}

bool Continuations::forked() const { return forked_from_endpoint() || made_in_ != getpid(); }

Continuations::Ptr Continuations::create() { return Ptr(new Continuations); }
Continuations::Ptr Continuations::deeper() { return made(deeper_); }
Continuations::Ptr Continuations::relays() { return made(relays_); }

Continuations::Ptr Continuations::made(Ptr& queue) {
  if (forked()) return create();
  std::lock_guard<std::mutex> lock(mutex_);
  if (queue == nullptr) {
    queue = create();
    queue->closed_ = closed_;
  }
  return queue;
}

void Continuations::add(FuturePtr awaited, Position position, Step step) {
  if (forked() || gate().closed()) {  // nobody would run it
    awaited->addCallback([step = std::move(step)](c10::ivalue::Future&) { run_logged(step); });
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
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
  entries_.push_back({std::move(awaited), std::move(position), std::move(step)});
  changed_.notify_all();
}

void Continuations::close() {
  if (forked()) return;
  Ptr deeper, relays;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    deeper = deeper_;
    relays = relays_;
    changed_.notify_all();
  }
  if (deeper != nullptr) deeper->close();
  if (relays != nullptr) relays->close();
}

bool Continuations::drained(Deadline deadline) {
  if (forked()) return true;
  Ptr deeper;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!closed_) return false;
    const auto over = [&] { return !running_; };
    if (deadline == Deadline::max()) {
      changed_.wait(lock, over);
    } else if (!changed_.wait_until(lock, deadline, over)) {
      return false;
    }
    deeper = deeper_;
  }
  return deeper == nullptr || deeper->drained(deadline);
}

void Continuations::run() {
  name_thread("fc-continue");
  t_running = this;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !entries_.empty() || closed_; });
    if (entries_.empty()) {
      running_ = false;
      changed_.notify_all();
      return;
    }
    // On the heap: when the interpreter is gone, its Python objects must not be touched.
    auto* entry = new Entry(std::move(entries_.front()));
    entries_.pop_front();
    lock.unlock();
    wait_for(*entry->awaited);
    if (!gate().enter()) return;
    t_position = entry->position;
    run_logged(entry->step);
    t_position = {};
    delete entry;
    gate().leave();
    lock.lock();
  }
}

void stop_continuations() {
  if (!forked_from_endpoint()) gate().close();
}

}  // namespace fastcomm
